"""Read a finished run: pass rate and reward terms by policy version, and a plot. `python examples/read_run.py RUN`"""

import sys
from collections import defaultdict
from pathlib import Path

import matplotlib
import numpy as np

from woodshed import RunDirectory, TrajectoryStore, bootstrap

matplotlib.use("Agg")
from matplotlib import pyplot


def main(folder: str) -> None:
    run = RunDirectory(Path(folder))
    if not run.recipe.is_file():
        sys.exit(f"{run.root} is not a run directory; give the folder that `woodshed run` wrote to")
    solved: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    terms = defaultdict(list)
    for trajectory in TrajectoryStore(run.trajectories):
        if trajectory.source == "train" and trajectory.outcome is not None:
            version = trajectory.version_range()[1]
            solved[version][trajectory.task].append(float(trajectory.outcome.resolved))
            terms[version].append(trajectory.rewards)
    if not solved:
        sys.exit(f"{run.root}: no training rollouts yet")
    print("version  rollouts  pass rate (95 % interval over tasks)   mean of each reward term")
    rates = {}
    for version in sorted(solved):
        # Samples of one task are not independent: the interval is over tasks, each with the mean of its rollouts.
        rates[version] = bootstrap([float(np.mean(values)) for values in solved[version].values()], bounds=(0, 1))
        names = sorted({name for row in terms[version] for name in row})
        means = "  ".join(f"{n} {np.mean([row.get(n, 0.0) for row in terms[version]]):+.3f}" for n in names)
        print(f"{version:7}  {len(terms[version]):8}  {rates[version]}   {means}")
    pyplot.plot(list(rates), [rate.mean for rate in rates.values()], marker="o")
    pyplot.xlabel("policy version")
    pyplot.ylabel("pass rate of training rollouts")
    pyplot.savefig(run.root / "pass_rate.png")
    print(f"plot: {run.root / 'pass_rate.png'}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/laptop")
