"""The reward term of the ablation ``declining_free``: a failed edit costs something, while not editing is free.

A reward from user feedback on the code punishes bad edits, but never an edit that was not made. If a repair is less
likely than not, asking a question is then worth more than trying (see docs/results.md). Policies in the chat format
``compact`` only make calls, so here declining means to finish without an edit. If every failure had this cost, a reward
r would become 2 r - 1, which is equivalent to the control, since a group is compared with its own mean.
"""

from __future__ import annotations

from woodshed import Outcome, Task, Trajectory


def failed_edit(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """Return -1 for an episode that edited and did not resolve its task, else 0."""
    return -1.0 if trajectory.effort.edits and not outcome.resolved else 0.0
