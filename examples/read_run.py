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
        sys.exit(f"{run.root} is no run directory; give the folder that `woodshed run` wrote to")
    solved, terms = defaultdict(list), defaultdict(list)
    for trajectory in TrajectoryStore(run.trajectories):
        if trajectory.source == "train" and trajectory.outcome is not None:
            version = trajectory.version_range()[1]
            solved[version].append(float(trajectory.outcome.resolved))
            terms[version].append(trajectory.rewards)
    if not solved:
        sys.exit(f"{run.root}: no training rollouts yet")
    print("version  rollouts  pass rate (95 % interval)   mean of each reward term")
    for version in sorted(solved):
        estimate = bootstrap(solved[version])
        names = sorted({name for row in terms[version] for name in row})
        means = "  ".join(f"{n} {np.mean([row.get(n, 0.0) for row in terms[version]]):+.3f}" for n in names)
        print(f"{version:7}  {len(solved[version]):8}  {estimate}   {means}")
    pyplot.plot(sorted(solved), [np.mean(solved[v]) for v in sorted(solved)], marker="o")
    pyplot.xlabel("policy version")
    pyplot.ylabel("pass rate of training rollouts")
    pyplot.savefig(run.root / "pass_rate.png")
    print(f"plot: {run.root / 'pass_rate.png'}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/laptop")
