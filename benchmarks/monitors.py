"""Measure the cost of the trajectory monitors, in milliseconds per episode, on the stored episodes of runs.

    python benchmarks/monitors.py RUN [RUN ...] [--episodes 60] [--out benchmarks/results/monitors.json]

RUN is a run directory with trajectories (``runs/laptop``). Submissions are not stored, so the reference solution is
used in place of the agent's submission. Every episode is read as in training: nothing is cached between episodes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from result import write_result

from woodshed.monitors import MONITORS, MonitoredEpisode, inspect
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory


def episodes(run: Path, n: int) -> list[tuple[Task, Trajectory]]:
    """Return up to ``n`` episodes of a run, evenly spread over time, with their tasks."""
    folders = {path.name: path for path in sorted(run.glob("tasks/*/*")) if (path / "task.toml").exists()}
    store = TrajectoryStore(run / "trajectories")
    try:
        rows = [row for row in store.rows() if _folder(row["task"]) in folders]
        chosen = rows[:: max(1, len(rows) // n)][:n]
        found = [(_folder(row["task"]), store.get(row["id"])) for row in chosen]
    finally:
        store.close()
    return [(Task.load(folders[name]), trajectory) for name, trajectory in found if trajectory is not None]


def _folder(name: str) -> str:
    return name.rpartition("/")[2]


def milliseconds(task: Task, trajectory: Trajectory, names: list[str]) -> float:
    """Return the time of one inspection by the monitors ``names``, including reading the task's files."""
    started = time.perf_counter()
    seen = MonitoredEpisode(task, trajectory.events, trajectory.messages, trajectory.effort, task.solution_files())
    inspect(seen, names)
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--episodes", type=int, default=60, help="of each kind of task (default: %(default)s)")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kinds: dict[str, list[tuple[Task, Trajectory]]] = {}
    for run in arguments.runs:
        for task, trajectory in episodes(run, 20 * arguments.episodes):
            kinds.setdefault("synthetic" if task.info.grader == "cases" else "package", []).append((task, trajectory))
    if not kinds:
        raise SystemExit(f"no episodes with their tasks in {', '.join(map(str, arguments.runs))}")
    figures: dict[str, float | None] = {}
    detail: dict[str, object] = {}
    for kind, all_found in kinds.items():
        found = all_found[:: max(1, len(all_found) // arguments.episodes)][: arguments.episodes]
        times = sorted(milliseconds(*pair, list(MONITORS)) for pair in found)
        figures[f"{kind}_episode_ms"] = statistics.median(times)
        each = {name: statistics.median(milliseconds(*pair, [name]) for pair in found) for name in MONITORS}
        detail[kind] = {"episodes": len(found), "p90": times[int(0.9 * len(times))], "monitors": each}
    write_result("monitors", figures, detail, arguments.out)


if __name__ == "__main__":
    main()
