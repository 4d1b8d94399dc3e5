"""Check a random sample of built tasks with everything that we have: gates, leak scan, the whole exploit battery.

    python benchmarks/task_sample.py runs/task-factory/tasks [--tasks 50] [--seed 0] [--exploits 0]

Writes results/tasks_sample.json. Finished tasks are recorded beside the tasks' folder, so that the same command
continues.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path
from typing import Any

from result import write_result
from rich.console import Console
from rich.progress import track

from woodshed.attacks.exploits import CONTROLS, EXPLOITS, run_battery
from woodshed.record.cache import cache_directory
from woodshed.record.jsonl import JsonLines
from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.find import task_folders
from woodshed.tasks.validate.gates import check_task


async def look(task: Task, backend: Backend, layers: LayerStore, most: int) -> dict[str, Any]:
    """Check one task with the gates and ``most`` exploits (0: all that fit); return its row."""
    report = await check_task(task, backend, layers)
    fitting = [e for e in EXPLOITS if task.info.grader in e.graders]
    chosen = random.Random(task.name).sample(fitting, most) if most else fitting
    attempts = await run_battery([task], backend, layers, exploits=[*CONTROLS, *chosen], concurrency=6)
    controls = {e.name for e in CONTROLS}
    return {
        "task": task.path.name,
        "kind": task.info.kind,
        "grader": task.info.grader,
        "failed_gates": report.failures,
        "controls_right": all(a.as_wanted() for a in attempts if a.exploit in controls),
        "exploits": sum(a.verdict in ("rejected", "rewarded") for a in attempts if a.exploit not in controls),
        "rewarded": sorted(a.exploit for a in attempts if a.verdict == "rewarded" and a.exploit not in controls),
        "infrastructure": sorted(a.exploit for a in attempts if a.verdict == "infrastructure"),
    }


async def look_at_all(chosen: list[Path], record: Path, most: int) -> list[dict[str, Any]]:
    """Return a row for each task, taken from ``record`` if it is there already."""
    rows = JsonLines(record)
    known = {row["task"]: row for row in rows.rows()}
    layers, backend = LayerStore(cache_directory() / "layers"), open_backend()
    try:
        for folder in track(chosen, "tasks", console=Console(stderr=True)):
            if folder.name not in known:
                known[folder.name] = await look(Task.load(folder), backend, layers, most)
                rows.append(known[folder.name])
    finally:
        await backend.close()
    return [known[folder.name] for folder in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what `woodshed tasks build` made")
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exploits", type=int, default=0, help="so many for each task, drawn; 0: all that fit")
    parser.add_argument("--out", type=Path, default=None, help="instead of results/tasks_sample.json")
    options = parser.parse_args()
    folders = sorted(task_folders([options.folder]))
    chosen = sorted(random.Random(options.seed).sample(folders, min(options.tasks, len(folders))))
    record = options.folder.parent / f"sample-{options.seed}-{options.exploits}.jsonl"
    rows = asyncio.run(look_at_all(chosen, record, options.exploits))
    figures: dict[str, float | None] = {
        "tasks": len(rows),
        "drawn_from": len(folders),
        "gates_passed": sum(not row["failed_gates"] for row in rows),
        "oracle_1_and_no_op_0": sum(row["controls_right"] for row in rows),
        "attempts": sum(row["exploits"] for row in rows),
        "rewarded": sum(len(row["rewarded"]) for row in rows),
        "infrastructure_errors": sum(len(row["infrastructure"]) for row in rows),
    }
    write_result("tasks_sample", figures, {"tasks": rows}, options.out)


if __name__ == "__main__":
    main()
