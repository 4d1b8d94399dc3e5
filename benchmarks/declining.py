"""The reward term of the ablation ``declining_free``: an edit that fails costs something, and not to edit is free.

A reward that is taken from what users say of the code punishes bad edits, and never the edit that was not made. Where a
repair is less likely than not, asking a question instead is then worth more than trying (see docs/results.md). Policies
in the chat format ``compact`` only make calls, so here declining is to finish without an edit. Had every failure that
price, a reward r would become 2 r - 1: the control's, as a group is compared with its own mean.
"""

from __future__ import annotations

from woodshed import Outcome, Task, Trajectory


def failed_edit(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    """-1 for an episode that edited and did not resolve its task, else 0."""
    return -1.0 if trajectory.effort.edits and not outcome.resolved else 0.0
