"""Compare the latency of a box on a box server with a box of this process, on the same machine, without a network.

    python benchmarks/hosts.py [--rounds 300]

Figures are medians of wall milliseconds, measured alternately: making and closing a box, running a command, running
warm Python, reading a file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from result import write_result

from woodshed.cluster.supervisor import free_ports
from woodshed.sandbox import open_backend
from woodshed.sandbox.protocol import Backend, BoxSpec
from woodshed.sandbox.remote.backend import RemoteBackend

SPEC = BoxSpec(files={f"pkg/m{n}.py": b"value = 1\n" * 40 for n in range(5)}, preload=("json",))


async def compare(url: str, key: str, rounds: int) -> dict[str, float]:
    backends: dict[str, Backend] = {"local": open_backend(), "remote": RemoteBackend(url, key)}
    times: dict[str, list[float]] = {}

    async def timed(name: str, call: Callable[[], Awaitable[Any]]) -> None:
        start = time.perf_counter()
        await call()
        times.setdefault(name, []).append(1000 * (time.perf_counter() - start))

    async def make_and_close(backend: Backend) -> None:
        await (await backend.create(SPEC)).close()

    try:
        boxes = {way: await backend.create(SPEC) for way, backend in backends.items()}
        for n in range(rounds):
            for way, box in boxes.items():
                await timed(f"exec_{way}", partial(box.exec, ["/usr/bin/true"]))
                await timed(f"python_{way}", partial(box.exec_python, "pass"))
                await timed(f"read_{way}", partial(box.read, "pkg/m1.py"))
                if n % 5 == 0:
                    await timed(f"create_{way}", partial(make_and_close, backends[way]))
    finally:
        for backend in backends.values():
            await backend.close()
    found = {f"{name}_ms": round(statistics.median(taken), 3) for name, taken in times.items()}
    for what in ("exec", "python", "read", "create"):
        found[f"{what}_added_ms"] = round(found[f"{what}_remote_ms"] - found[f"{what}_local_ms"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path, help="another file than benchmarks/results/hosts.json")
    arguments = parser.parse_args()
    (port,), key = free_ports(1), secrets.token_hex(32)
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as state:
        server = subprocess.Popen(
            [sys.executable, "-m", "woodshed.cli", "boxes", "--port", str(port), "--state", state],
            env={**os.environ, "WOODSHED_ADMIN_KEY": key},
            stdout=subprocess.DEVNULL,
        )
        try:
            while True:
                if server.poll() is not None:
                    sys.exit("the box server did not start")
                try:
                    httpx.get(f"{url}/health", trust_env=False)
                    break
                except httpx.HTTPError:
                    time.sleep(0.05)
            figures = asyncio.run(compare(url, key, arguments.rounds))
        finally:
            server.terminate()
            server.wait()
    write_result("hosts", figures, {"rounds": arguments.rounds}, arguments.out)


if __name__ == "__main__":
    main()
