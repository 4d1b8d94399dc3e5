"""Measure the overhead of the pool for a light box, and what warm bases save for a heavy one.

    python benchmarks/pool.py [--rounds 100] [--backend namespace]

``plain`` is the bare backend, ``pool`` the same behind the pool. Light: five small files, as in a generated synthetic
task. Heavy: 400 files of 5 KiB, as in the workspace of a package. Figures are wall milliseconds of create and close,
measured alternately in one run."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path

from result import write_result

from woodshed.sandbox.backends.by_name import NAMES, open_backend
from woodshed.sandbox.protocol import Backend, BoxSpec, SandboxError
from woodshed.sandbox.settings import SandboxSettings
from woodshed.stages.boxes import backend_of

SPECS = {
    "light": BoxSpec(files={f"pkg/m{n}.py": b"value = 1\n" * 40 for n in range(5)}, preload=("json",)),
    "heavy": BoxSpec(files={f"pkg/d{n % 20}/m{n}.py": b"value = 1\n" * 500 for n in range(400)}, preload=("json",)),
}


async def compare(name: str, rounds: int) -> dict[str, float]:
    """Return medians, measured alternately, so that other load of the machine affects both."""
    backends: dict[str, Backend] = {"plain": open_backend(name), "pool": backend_of(SandboxSettings(backend=name))}
    times: dict[str, list[float]] = {f"{kind}_{way}": [] for kind in SPECS for way in backends}
    try:
        for spec in SPECS.values():  # the start of the helper process and the base do not count
            for backend in backends.values():
                for _ in range(3):
                    await (await backend.create(spec)).close()
        for _ in range(rounds):
            for kind, spec in SPECS.items():
                for way, backend in backends.items():
                    start = time.perf_counter()
                    await (await backend.create(spec)).close()
                    times[f"{kind}_{way}"].append(1000 * (time.perf_counter() - start))
    finally:
        for backend in backends.values():
            await backend.close()
    return {f"{name}_{what}_ms": round(statistics.median(taken), 3) for what, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="boxes of each kind; a tenth of it for gvisor")
    parser.add_argument("--backend", choices=NAMES, action="append", help="only this one; repeatable")
    parser.add_argument("--out", type=Path, help="another file than benchmarks/results/pool.json")
    arguments = parser.parse_args()
    figures: dict[str, float | None] = {}
    left_out: dict[str, str] = {}
    for name in arguments.backend or NAMES:
        try:
            probe = open_backend(name).probe()
        except SandboxError as error:
            left_out[name] = str(error)
            continue
        if not probe.ok:
            left_out[name] = "; ".join(probe.reasons)
            continue
        rounds = arguments.rounds if name == "namespace" else max(3, arguments.rounds // 10)
        figures |= asyncio.run(compare(name, rounds))
    write_result("pool", figures, {"rounds": arguments.rounds, "left_out": left_out}, arguments.out)


if __name__ == "__main__":
    main()
