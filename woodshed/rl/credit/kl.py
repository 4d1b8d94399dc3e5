"""KL to a reference policy, as a detached per-token term of the advantage."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def k1_advantages(
    advantage: float, logprobs_T: NDArray[np.float32], ref_logprobs_T: NDArray[np.float32], beta: float
) -> NDArray[np.float32]:
    """``A_t = A - beta * k1_t`` with ``k1_t = log pi(t) - log ref(t) = -log r`` (Composer 2 report, section 4.1).

    ``logprobs_T`` are those of the policy that sampled. k1 belongs here and not in the loss: differentiated as a
    loss its expected gradient is E[grad log pi] = 0, while as a detached term of the advantage its gradient equals,
    sample by sample, that of k2 = k1^2 / 2 as a loss.
    """
    return (advantage - beta * (logprobs_T - ref_logprobs_T)).astype(np.float32)
