"""CPU seconds of an RL step, and what single settings save: ``python benchmarks/step_cost.py --base runs/laptop``.

Every arm runs the RL stage of ``--base`` (a run that got at least as far as its first evaluation) with two numbers of
steps. The difference in CPU seconds of all processes and boxes, divided by the difference in steps, is the cost of one
step without the start. Arms alternate. Unlike steps per minute, CPU seconds depend little on other load of the machine.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
from pathlib import Path

from async_rl import TINY_EVALUATION, branch
from recipe_runs import run_recipe
from result import write_result

ARMS = {
    "plain": ["harness.reuse_test_results=false"],
    "reused_test_results": ["harness.reuse_test_results=true"],
}
"""Settings of each arm; the others are compared with the first."""
SHORT = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=Path("runs/laptop"))
    parser.add_argument("--work", type=Path, default=Path("runs/bench-step-cost"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    costs: dict[str, list[float]] = {arm: [] for arm in ARMS}
    for _ in range(args.rounds):
        for arm, settings in ARMS.items():
            spent = [cpu_seconds(args.base, args.work / "run", steps, settings) for steps in (SHORT, args.steps)]
            costs[arm].append((spent[1] - spent[0]) / (args.steps - SHORT))
            print(arm, costs[arm], flush=True)
    middle = {arm: statistics.median(each) for arm, each in costs.items()}
    plain = next(iter(ARMS))
    figures = {f"cpu_seconds_per_step_{arm}": seconds for arm, seconds in middle.items()}
    figures |= {f"{arm}_ratio": middle[arm] / middle[plain] for arm in ARMS if arm != plain}
    write_result("step_cost", figures, {"steps": [SHORT, args.steps], "settings": ARMS, "runs": costs})


def cpu_seconds(base: Path, out: Path, steps: int, settings: list[str]) -> float:
    """Return the CPU seconds of a run's RL stage, including its start and a tiny evaluation."""
    branch(base, out, [*settings, *TINY_EVALUATION, f"rl.steps={steps}"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run_recipe(out, out)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    shutil.rmtree(out)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
