"""GRPO as published (Shao et al. 2024, arXiv:2402.03300, section 4.1), for comparison with the default."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, centred, predicted, rewards_of, spread

EPSILON = 1e-4


class Grpo(Algorithm):
    """A = (R - mean) / (std + 1e-4), with the sample standard deviation (ddof 1) as in TRL, divided by the rollout's
    own length, in the clipped surrogate (loss part ``ppo``).

    ``std=False`` and ``length=False`` turn the two normalisations off. For GRPO's KL term, set ``rl.kl_beta`` and
    ``train.kl.estimator`` k3.
    """

    parts = ("ppo",)

    def __init__(self, budget: int, *, std: bool = True, length: bool = True) -> None:
        super().__init__(budget)
        self.std, self.length = std, length

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        scales_G = self.budget / lengths_of(group) if self.length else np.ones(len(group))
        advantages_G = standardised(rewards_of(group), self.std) * scales_G
        return [spread(t, float(advantage), self.parts[0]) for t, advantage in zip(group, advantages_G)]


def standardised(rewards_G: NDArray[np.float64], std: bool = True) -> NDArray[np.float64]:
    """Return (R - mean) / (std + 1e-4), or R - mean if not ``std``."""
    return centred(rewards_G) / (rewards_G.std(ddof=1) + EPSILON if std else 1.0)


def lengths_of(group: Sequence[Trajectory]) -> NDArray[np.float64]:
    """Return the number of sampled tokens of each trajectory, over all of its segments; at least 1."""
    return np.array([max(1, sum(int(predicted(s.sampled).sum()) for s in t.segments)) for t in group], np.float64)
