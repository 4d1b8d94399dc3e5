"""Choose a policy's sampling temperature on development tasks, and draw tasks the same way everywhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from woodshed.record.task import Task

Key = TypeVar("Key", bound=Hashable)


def best_temperature(tried: Mapping[float, float]) -> float:
    """Return the temperature with the best mean, the lowest of equal ones. A mean of nan counts as the worst."""
    return max(sorted(tried), key=lambda at: -math.inf if math.isnan(tried[at]) else tried[at])


async def choose_temperature(
    temperatures: Sequence[float], samples: Callable[[float], Awaitable[Mapping[str, Sequence[bool]]]]
) -> tuple[float, dict[float, float]]:
    """Return (the temperature to evaluate at, development score of each one that was tried).

    ``samples`` returns the outcomes of each development task at a temperature; with a single temperature it is not
    called.
    """
    if len(temperatures) == 1:
        return temperatures[0], {}
    found = [await samples(at) for at in temperatures]
    tried = dict(zip(temperatures, means_over_shared_tasks(found), strict=True))
    return best_temperature(tried), tried


def check_told(tried: Mapping[float, float]) -> None:
    """Raise ValueError if temperatures were tried and none has a sample, so that none is the best."""
    if tried and all(map(math.isnan, tried.values())):
        raise ValueError(
            "evaluate.temperatures: no sample on the development tasks ended, so no temperature can be chosen; see the "
            "errors of these episodes, or name a single temperature"
        )


def means_over_shared_tasks(results: Sequence[Mapping[Key, Sequence[bool]]]) -> list[float]:
    """Return pass@1 of each result over the tasks that all have samples of, so that one which lost its hardest tasks is
    not the best; nan for results without samples. If there is no such task, each has its own."""
    known = [{task for task, passed in result.items() if passed} for result in results]
    shared = set.intersection(*each) if (each := [tasks for tasks in known if tasks]) else set()
    return [
        mean_over_tasks({task: passed for task, passed in result.items() if task in (shared & tasks or tasks)})
        for result, tasks in zip(results, known, strict=True)
    ]


def mean_over_tasks(results: Mapping[Key, Sequence[bool]]) -> float:
    """Return pass@1: the mean over tasks of the share of their samples that passed; nan without tasks."""
    rates = [sum(passed) / len(passed) for passed in results.values() if passed]
    return sum(rates) / len(rates) if rates else math.nan


def draw_by_digest(tasks: Sequence[Task], most: int) -> list[Task]:
    """Return the ``most`` tasks whose names have the smallest digests: a pseudo-random sample, the same every time."""
    return sorted(tasks, key=lambda task: hashlib.sha256(task.name.encode()).digest())[:most]
