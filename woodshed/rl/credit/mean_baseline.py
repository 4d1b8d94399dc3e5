"""The default: reward minus the group's mean (Composer 2 report, section 4.1; Dr. GRPO, arXiv:2503.20783)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class MeanBaseline:
    """A = R - mean(R). Never divided by the standard deviation: in a group whose outcomes are all equal that would
    blow up whatever small differences a length penalty leaves."""

    def advantages(self, rewards_G: NDArray[np.float64]) -> NDArray[np.float64]:
        return rewards_G - rewards_G.mean()
