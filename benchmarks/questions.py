"""Reward terms of the ablations ``questions_free`` and ``questions_counted``: failures that cost something.

A reward that is taken from what users say of the code punishes bad edits, and never the edit that was not made. Where a
repair is less likely than not, asking a question is then worth more than trying (see docs/results.md).
"""

from __future__ import annotations

from woodshed import Outcome, Task, Trajectory


def failed_edit(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """-1 for an episode that edited and did not resolve its task, else 0: a question costs nothing."""
    return -1.0 if trajectory.effort.edits and not outcome.resolved else 0.0


def failed(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """-1 for an episode that did not resolve its task, whatever it did."""
    return 0.0 if outcome.resolved else -1.0
