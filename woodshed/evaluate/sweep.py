"""Choose a policy's sampling temperature on development tasks, and draw tasks the same way everywhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from woodshed.record.task import Task


def best_temperature(tried: Mapping[float, float]) -> float:
    """Return the temperature with the best mean, the lowest of equal ones. A mean of nan counts as the worst."""
    return max(sorted(tried), key=lambda at: -math.inf if math.isnan(tried[at]) else tried[at])


async def choose_temperature(
    temperatures: Sequence[float], score: Callable[[float], Awaitable[float]]
) -> tuple[float, dict[float, float]]:
    """Return (the temperature to evaluate at, development score of each one that was tried).

    ``score`` returns the mean on the development tasks at a temperature; with a single temperature it is not called.
    """
    if len(temperatures) == 1:
        return temperatures[0], {}
    tried = {at: await score(at) for at in temperatures}
    return best_temperature(tried), tried


def mean_over_tasks(results: Mapping[str, Sequence[bool]]) -> float:
    """Return pass@1: the mean over tasks of the share of their samples that passed; nan without tasks."""
    rates = [sum(passed) / len(passed) for passed in results.values() if passed]
    return sum(rates) / len(rates) if rates else math.nan


def draw_by_digest(tasks: Sequence[Task], most: int) -> list[Task]:
    """Return the ``most`` tasks whose names have the smallest digests: a pseudo-random sample, the same every time."""
    return sorted(tasks, key=lambda task: hashlib.sha256(task.name.encode()).digest())[:most]
