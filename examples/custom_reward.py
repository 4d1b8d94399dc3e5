"""A reward term of your own: small changes, and no tests deleted. Put this file into the folder you start runs from:

    [rl.rewards]
    "custom_reward:small_change" = 0.2
    "custom_reward:deletes_files" = { weight = 0.5, cap = 0.5 }

and `woodshed run my-recipe.toml`. `python examples/custom_reward.py RUN` scores the stored episodes of a run.
"""

import re
import sys
from pathlib import Path

from woodshed import Outcome, RunDirectory, Task, Trajectory, TrajectoryStore


def small_change(task: Task, trajectory: Trajectory, outcome: Outcome, *, most: int = 3) -> float:
    """-1 for each accepted edit beyond ``most``, at most -5."""
    return -float(min(5, max(0, trajectory.effort.edits - most)))


def deletes_files(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """-1 where a command removed files."""
    commands = [(event.arguments or {}).get("command", "") for event in trajectory.events]
    return -1.0 if any(re.search(r"\brm\b", str(command)) for command in commands) else 0.0


def main(folder: str) -> None:
    run = RunDirectory(Path(folder))
    if not run.recipe.is_file():
        sys.exit(f"{run.root} is not a run directory; give the folder that `woodshed run` wrote to")
    tasks = {task.name: task for path in run.root.glob("tasks/**/task.toml") for task in [Task.load(path.parent)]}
    for trajectory in TrajectoryStore(run.trajectories):
        if trajectory.outcome is not None and trajectory.task in tasks:
            value = small_change(tasks[trajectory.task], trajectory, trajectory.outcome, most=1)
            print(f"{value:5.1f}  {trajectory.effort.edits} edits  {trajectory.id}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/laptop")
