"""Compare how OpenMP threads of a small training step wait for each other: ``python benchmarks/threads.py``.

Matrix products and gradients of the sizes of the laptop policy with two threads, for different times that a thread
spins before it sleeps (``GOMP_SPINCOUNT``); alone on the machine, and together with as many busy processes as there are
cores. Settings alternate; figures are medians of steps per second, divided by those of one thread under the same
conditions.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from result import write_result

SETTINGS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "spins 300000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "300000"},
    "spins 3000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "3000"},
    "passive": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"},
}
STEPS = """
import os, time, torch
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
x = torch.randn(1700, 128)
weights = [torch.randn(352, 128) for _ in range(8)]
def step():
    for w in weights:
        g = torch.nn.functional.silu(x @ w.T)
        g @ w, g.T @ x
step()
count, start = 0, time.perf_counter()
while time.perf_counter() - start < {seconds}:
    step()
    count += 1
print(count / (time.perf_counter() - start))
"""


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Run ``number`` busy processes during the body."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def steps_per_second(setting: dict[str, str], seconds: float) -> float:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    program = [sys.executable, "-c", STEPS.format(seconds=seconds)]
    return float(subprocess.run(program, env=plain | setting, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args()
    figures: dict[str, float | None] = {}
    detail: dict[str, dict[str, list[float]]] = {}
    for place, others in (("alone", 0), ("beside_others", os.cpu_count() or 1)):
        rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
        with busy(others):
            for _ in range(args.rounds):
                for name, setting in SETTINGS.items():
                    rates[name].append(steps_per_second(setting, args.seconds))
        one = statistics.median(rates["one thread"])
        for name in list(SETTINGS)[1:]:
            figures[f"{name.replace(' ', '_')}_{place}"] = statistics.median(rates[name]) / one
        detail[place] = rates
    write_result("threads", figures, dict(detail))


if __name__ == "__main__":
    main()
