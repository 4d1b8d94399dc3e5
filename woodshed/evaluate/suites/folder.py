"""A folder of task directories as a suite: tasks made by ``woodshed tasks build``, or the held-out split of a run."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from woodshed.evaluate.builder.lock import LOCK, TASKS, BenchmarkError, load_benchmark
from woodshed.record.history import in_use
from woodshed.record.task import Task, TaskError
from woodshed.tasks.find import task_folders

from .base import SuiteContext, SuiteError

log = logging.getLogger(__name__)

ALL = "all"


async def load_folder(source: str, context: SuiteContext) -> list[Task]:
    """Load the tasks of ``context.split`` below a folder that are in use. In a run directory: those of its main
    tasks."""
    return await asyncio.to_thread(_load, source, context.split)


def _load(source: str, split: str) -> list[Task]:
    folder = Path(source).expanduser()
    try:
        if (home := _benchmark_of(folder)) is not None:
            loaded = load_benchmark(home)
        else:
            places = _splits_of_run(folder, split) if (folder / "recipe.toml").is_file() else [folder]
            loaded = [Task.load(path.absolute()) for path in task_folders(places)]
        found, _ = in_use(loaded)
    except (BenchmarkError, TaskError) as error:
        raise SuiteError(f"--suite {source}: {error}") from None
    chosen = [task for task in found if split in (ALL, task.info.split)]
    if not chosen:
        there = sorted({task.info.split for task in found})
        raise SuiteError(
            f"--suite {source}: none of its {len(found)} tasks in use is of the split {split!r} (there are: "
            f"{', '.join(there) or 'none'}); choose with --split, 'all' takes every task"
        )
    if len(chosen) < len(found):
        counts = f"{len(chosen)} of its {len(found)} tasks"
        log.warning("--suite %s: %s are of the split %s; --split all takes the others, too", source, counts, split)
    return sorted(chosen, key=lambda task: task.name)


def _benchmark_of(folder: Path) -> Path | None:
    """Return the absolute folder of the locked benchmark that ``folder``, or its ``tasks``, is; None for others."""
    place = folder.absolute()
    homes = (place, place.parent) if place.name == TASKS else (place,)
    return next((home for home in homes if (home / LOCK).is_file()), None)


def _splits_of_run(folder: Path, split: str) -> list[Path]:
    """Return the folders (``tasks/FAMILY-SPLIT``) of a split of the run's main tasks. Raises SuiteError."""
    ends = "*" if split == ALL else split
    found = sorted((folder / "tasks").glob(f"*-{ends}"))
    main = [path for path in found if not path.name.startswith("packages-")] or found
    if not main:
        raise SuiteError(f"--suite {folder}: this run has no tasks of the split {split!r} yet")
    return main
