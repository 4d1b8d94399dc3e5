"""Held-out tasks are about something else than those that are trained on: near-duplicates across splits."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.task import Task

from .change import change_of
from .duplicates import near_duplicates

HELDOUT = "heldout"
TWIN = "nearly the same as a held-out task"


def twins_of_heldout(tasks: Sequence[Task]) -> dict[str, str]:
    """Training tasks whose change is almost that of a held-out one: name -> name of the held-out one.

    Only one of the two may be met in training, and what is evaluated stays.
    """
    splits = {task.name: task.info.split for task in tasks}
    found: dict[str, str] = {}
    for pair in near_duplicates(tasks, [change_of(task) for task in tasks]):
        if not pair.crosses:
            continue
        for task, other in ((pair.first, pair.second), (pair.second, pair.first)):
            if splits[task] != HELDOUT and splits[other] == HELDOUT:
                found.setdefault(task, other)
    return found
