"""Reward minus the mean of the *other* rollouts (RLOO, Ahmadian et al. 2024, arXiv:2402.14740)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class LeaveOneOut:
    """A = R_i - mean over j != i of R_j, which is the mean baseline's advantage times G / (G - 1): unbiased, since
    the baseline does not depend on the rollout itself."""

    def advantages(self, rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        return (rewards_G - rewards_G.mean()) * len(rewards_G) / (len(rewards_G) - 1)
