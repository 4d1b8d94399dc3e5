"""The default: reward minus the group's mean (Composer 2 report, section 4.1; Dr. GRPO, arXiv:2503.20783)."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, centred, rewards_of, spread


class MeanBaseline(Algorithm):
    """A = R - mean(R) for every sampled token. Not divided by the standard deviation: in a group whose outcomes are
    all equal, that would blow up the small differences that a length penalty leaves. Not divided by a rollout's own
    length either: that would make long failures cheap."""

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        advantages_G = centred(rewards_of(group))
        return [spread(trajectory, float(advantage)) for trajectory, advantage in zip(group, advantages_G)]
