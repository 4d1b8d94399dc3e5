"""Reward minus the mean of the *other* rollouts (RLOO, Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, centred, rewards_of, spread


class LeaveOneOut(Algorithm):
    """A = R_i - mean over j != i of R_j, which is the mean baseline's advantage times G / (G - 1): unbiased, since
    the baseline does not depend on the rollout itself."""

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        advantages_G = centred(rewards_of(group)) * len(group) / (len(group) - 1)
        return [spread(trajectory, float(advantage)) for trajectory, advantage in zip(group, advantages_G)]
