"""Group-standardised reward (GRPO, Shao et al. 2024, arXiv:2402.03300), for comparison with the default."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-4


class Grpo:
    """A = (R - mean) / (std + 1e-4) with the sample standard deviation (ddof 1), as in TRL."""

    def advantages(self, rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        return (rewards_G - rewards_G.mean()) / (rewards_G.std(ddof=1) + EPSILON)
