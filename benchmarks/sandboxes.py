"""Measure the costs of sandboxes compared with a plain subprocess (and bubblewrap if installed), resource leaks, and
escapes.

The gvisor and microvm backends are measured where they work (``scripts/install-runsc``, ``scripts/install-qemu``): full
snapshots of a box with a background process, forks that continue from a snapshot, and the memory of eight forks.

    python benchmarks/sandboxes.py [--cycles 1000] [--out benchmarks/results/sandbox.json]

Times are wall milliseconds on the machine as it is; its load during the measurement is in the result.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from result import write_result
from sandbox_forks import figures, measure_forking, memory, timed
from sandbox_pairs import measure_pairs, pair_figures

from woodshed.attacks.escapes.battery import attack_backend
from woodshed.sandbox import open_backend
from woodshed.sandbox.backends.by_name import NAMES
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.protocol import BoxSpec, SandboxError

FILES = {f"pkg/module{n}.py": b"value = 1\n" * 40 for n in range(5)}
SPEC = BoxSpec(files=FILES, preload=("json",))
TICKS = os.sysconf("SC_CLK_TCK")
AT_ONCE = 8


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its terminated children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


async def measure(n: int) -> dict[str, Any]:
    """Measure every operation of a box, then the alternatives to boxes."""
    backend = NamespaceBackend()
    out: dict[str, Any] = {}
    try:
        await (await backend.create(SPEC)).close()  # the start of the fork server does not count
        pid = backend.pid or 0
        cpu = cpu_seconds(pid)
        out["create"] = await timed(n, lambda: backend.create(SPEC), lambda box: box.close())
        out["create_and_close_cpu_ms"] = 1000 * (cpu_seconds(pid) - cpu) / n
        box = await backend.create(SPEC)
        snapshot = await box.snapshot()
        out["fork"] = await timed(n, lambda: backend.fork(snapshot), lambda boxes: boxes[0].close())
        out["exec_true"] = await timed(n, lambda: box.exec(["/usr/bin/true"]))
        out["exec_sh"] = await timed(n, lambda: box.exec("true"))
        out["exec_python_warm"] = await timed(n, lambda: box.exec_python("print(1)"))
        out["exec_python_cold"] = await timed(
            n // 4, lambda: box.exec([Path(sys.executable).name, "-I", "-c", "print(1)"])
        )
        out["read"] = await timed(n, lambda: box.read("pkg/module1.py"))
        out["put_5_files"] = await timed(n, lambda: box.put(FILES))

        async def snap() -> None:
            await backend.drop(await box.snapshot())

        out["snapshot"] = await timed(min(n, 30), snap)
        before = memory(pid)
        start = time.perf_counter()
        boxes = await asyncio.gather(*(backend.create(SPEC) for _ in range(64)))
        await asyncio.gather(*(each.exec("true") for each in boxes))
        out["concurrent_64_create_and_exec_ms"] = 1000 * (time.perf_counter() - start)
        out["concurrent"] = len(boxes)
        out["clone_mib"] = (memory(pid) - before) / len(boxes) / 2**20
        await asyncio.gather(*(each.close() for each in boxes))
    finally:
        await backend.close()
    out["subprocess_true"] = await timed(n, lambda: _run("/usr/bin/true"))
    out["subprocess_python"] = await timed(n // 4, lambda: _run(sys.executable, "-I", "-c", "print(1)"))
    if bwrap := shutil.which("bwrap"):
        links = ("--symlink", "usr/lib64", "/lib64", "--symlink", "usr/lib", "/lib")
        flags = ("--unshare-all", "--ro-bind", "/usr", "/usr", *links)
        out["bwrap_true"] = await timed(n, lambda: _run(bwrap, *flags, "/usr/bin/true"))
    image = _docker_image()
    if image:
        out["docker_true"] = await timed(
            n // 10, lambda: _run("docker", "run", "--rm", "--network=none", image, "/bin/true")
        )
    return out


def _docker_image() -> str:
    """Return the id of an image that a working Docker engine has, '' if none; nothing is pulled."""
    try:
        command = ["docker", "images", "--format", "{{.ID}}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0]


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise SystemExit(f"{command[0]} failed")


def _inventory(root: Path) -> dict[str, int]:
    processes = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _parent(p) == os.getpid()]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "processes": len(processes),
        "entries_on_disk": sum(1 for _ in root.rglob("*")),
    }


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _fork_server(pid: int) -> dict[str, int]:
    return {
        "fork_server_descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "fork_server_mounts": len(Path(f"/proc/{pid}/mounts").read_text().splitlines()),
        "fork_server_children": sum(_parent(p) == pid for p in Path("/proc").iterdir() if p.name.isdigit()),
    }


async def leaks(cycles: int) -> dict[str, int]:
    """Make, use and destroy ``cycles`` boxes; return by how much descriptors, mounts and so on grew (0: nothing leaks).

    Host users, with their devices, are kept for later boxes (``namespace/users.py``), as many as there were boxes at
    the same time. Therefore the maximum number of boxes is made before the first count.
    """
    root = Path(tempfile.mkdtemp(prefix="sandbox-leaks-"))
    before = _inventory(root)
    backend = NamespaceBackend(root)
    try:
        boxes = await asyncio.gather(*(backend.create(SPEC) for _ in range(2 * AT_ONCE)))
        await asyncio.gather(*(box.close() for box in boxes))
        pid = backend.pid or 0
        running = _fork_server(pid)

        async def cycle(number: int) -> None:
            box = await backend.create(SPEC)
            await box.exec("sleep 60 & echo x > /tmp/x")
            if number % 10 == 0:
                snapshot = await box.snapshot()
                for fork in await backend.fork(snapshot):
                    await fork.close()
                await backend.drop(snapshot)
            await box.close()

        for start in range(0, cycles, AT_ONCE):
            await asyncio.gather(*(cycle(n) for n in range(start, min(start + AT_ONCE, cycles))))
        growth = {name: value - running[name] for name, value in _fork_server(pid).items()}
    finally:
        await backend.close()
    growth |= {name: value - before[name] for name, value in _inventory(root).items()}
    root.rmdir()
    return growth


def escapes() -> dict[str, list[dict[str, str]]]:
    """Return the outcome of every escape attempt, for each backend that works here."""
    found = {}
    for name in NAMES:
        try:
            if not open_backend(name).probe().ok:
                continue
        except SandboxError:
            continue
        # Without the file name at the end of an error: paths on this machine are private.
        found[name] = [{**vars(t), "refusal": t.refusal.partition(": '")[0]} for t in attack_backend(name)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=None, help="default: benchmarks/results/sandbox.json")
    options = parser.parse_args()
    load = [os.getloadavg()[0]]
    detail = asyncio.run(measure(options.samples))
    samples = max(5, options.samples // 5)
    forking = {name: asyncio.run(measure_forking(name, SPEC, samples)) for name in NAMES if name != "namespace"}
    load.append(os.getloadavg()[0])
    growth = asyncio.run(leaks(options.cycles))
    tried = escapes()
    beside = measure_pairs()
    attempts = [attempt for every in tried.values() for attempt in every]
    load.append(os.getloadavg()[0])
    write_result(
        "sandbox",
        {
            "namespace_create_ms": detail["create"]["median"],
            "namespace_fork_ms": detail["fork"]["median"],
            "namespace_exec_ms": detail["exec_true"]["median"],
            "namespace_clone_mib": detail["clone_mib"],
            **{figure: value for name, found in forking.items() for figure, value in figures(name, found).items()},
            "concurrent": detail["concurrent"],
            f"leaked_after_{options.cycles}": sum(abs(value) for value in growth.values()),
            "escape_attempts": len(attempts),
            "escapes": sum(bool(attempt["evidence"]) for attempt in attempts),
            **pair_figures(beside),
        },
        {**detail, **forking, "leaks": growth, "escapes": tried, "pairs": beside, "load_average": load},
        options.out,
    )


if __name__ == "__main__":
    main()
