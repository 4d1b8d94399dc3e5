"""Held-out tasks are about something else than those that are trained on: near-duplicates across splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from woodshed.record.task import Task
from woodshed.tasks.change import change_of

from .duplicates import similar

HELDOUT = "heldout"
TWIN = "nearly the same as a held-out task"


def twins_of_heldout(tasks: Sequence[Task]) -> dict[Path, str]:
    """Training tasks whose change is almost that of a held-out one: path -> name of the most similar held-out one.

    Only one of the two may be met in training, and what is evaluated stays. Names need not differ: the same change is
    called the same in another folder, where it may be of another split.
    """
    found: dict[Path, str] = {}
    pairs = sorted(similar([change_of(task) for task in tasks]), key=lambda pair: -pair[2])
    for pair in ((tasks[first], tasks[second]) for first, second, _ in pairs):
        for task, other in (pair, pair[::-1]):
            if task.info.split != HELDOUT and other.info.split == HELDOUT:
                found.setdefault(task.path, other.name)
    return found


def heldout_beside(out: Path, tasks: Sequence[Task]) -> list[Task]:
    """Held-out tasks in the folder ``out`` that are none of ``tasks``."""
    own = {task.path for task in tasks}
    folders = [toml.parent for toml in sorted(out.glob("*/task.toml")) if not toml.parent.name.startswith(".")]
    others = (Task.load(folder) for folder in folders if folder not in own)
    return [task for task in others if task.info.split == HELDOUT]
