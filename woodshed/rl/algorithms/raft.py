"""Cross-entropy on the rollouts that succeeded (RAFT, Dong et al. 2023, arXiv:2304.06767), batch by batch."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, spread


class Raft(Algorithm):
    """Weight 1 for rollouts with a reward above ``above``, 0 for the others.

    Rollouts are not compared with each other: groups in which all rollouts succeed are trained too, and a group may be
    a single rollout. Importance ratios and clipping do not apply; rollouts of older policy versions count like those
    of the newest.
    """

    parts = ("ce",)
    least = 1

    def __init__(self, budget: int, *, above: float = 0.5) -> None:
        super().__init__(budget)
        self.above = above

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        return [spread(t, float(t.reward > self.above), self.parts[0]) for t in group]
