"""Attempts at a repair within an episode: an edit that was accepted, then a test run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from woodshed.record.trajectory import ToolEvent

from .rewards.test_runs import suite_passed
from .rewards.tool_use import EDITS


def attempts(events: Iterable[ToolEvent]) -> list[bool]:
    """Return the attempts in order: True for one that passed. Only runs of the ``run_tests`` tool count."""
    return [suite_passed(event.result) for event in attempt_events(events)]


def attempt_events(events: Iterable[ToolEvent]) -> list[ToolEvent]:
    """Return the events of the attempts: the first test run after each accepted edit, in order."""
    found, edited = [], False
    for event in events:
        if event.error is None and event.name in EDITS and event.name != "undo":
            edited = True
        elif event.name == "run_tests" and edited:
            found.append(event)
            edited = False
    return found


def wasted_calls(events: Sequence[ToolEvent]) -> set[int]:
    """Return the indices of calls without lasting effect: calls answered with an error, and changes that ``undo``
    reverted."""
    found: set[int] = set()
    standing: list[int] = []
    for index, event in enumerate(events):
        if event.error is not None:
            found.add(index)
        elif event.name == "undo":
            found.update(standing[-1:])
            del standing[-1:]
        elif event.name in EDITS:
            standing.append(index)
    return found


def attempt_rates(episodes: Iterable[Sequence[ToolEvent]]) -> tuple[float, float]:
    """Return the share of first attempts that passed, and of later ones; nan if there are none."""
    first: list[bool] = []
    later: list[bool] = []
    for events in episodes:
        tried = attempts(events)
        first += tried[:1]
        later += tried[1:]
    return _share(first), _share(later)


def rate_if_fresh(tasks: Iterable[Sequence[Sequence[ToolEvent]]]) -> float:
    """Return the share of later attempts that would pass if each were the first attempt of another episode of its task;
    nan where there is none. ``tasks`` gives the episodes of each task.

    Attempts that learn from what failed before them pass more often than this.
    """
    expected, later = 0.0, 0
    for episodes in tasks:
        tried = [found for found in map(attempts, episodes) if found]
        others = len(tried) - 1
        if others < 1:
            continue
        passed = sum(found[0] for found in tried)
        for found in tried:
            expected += (len(found) - 1) * (passed - found[0]) / others
            later += len(found) - 1
    return expected / later if later else float("nan")


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed) if passed else float("nan")
