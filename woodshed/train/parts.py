"""The loss parts: for each weighted token a value and its derivative with respect to that token's log-probability.

Every part so far depends on the network through ``logp = log pi(token | before)`` alone, so the derivative with
respect to the logits is ``slope * (onehot - softmax)`` and no graph over the vocabulary has to be kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .settings import ImportanceSettings


def importance(logp_M: Tensor, behaviour_M: Tensor, settings: ImportanceSettings) -> Tensor:
    """Weight ``[M]`` of each token for being off-policy, r = exp(logp - behaviour); 1 where behaviour is nan.

    ``mask``: r in [low, high], else 0 (IcePop, Ling team 2025). ``truncate``: min(r, cap) (Munos et al. 2016;
    IMPALA). ``off``: 1. Detached: policy gradients weight by the ratio, they do not differentiate it.
    """
    if settings.mode == "off":
        return torch.ones_like(logp_M)
    ratio = (logp_M.detach() - behaviour_M).exp().nan_to_num(nan=1.0)
    if settings.mode == "truncate":
        return ratio.clamp(max=settings.cap)
    return torch.where((ratio >= settings.low) & (ratio <= settings.high), ratio, 0.0)


def rl(logp_M: Tensor, weight_M: Tensor, importance_M: Tensor) -> tuple[Tensor, Tensor]:
    """Policy gradient, ``-w * importance * logp`` (REINFORCE; w is the advantage)."""
    slope = -weight_M * importance_M
    return slope * logp_M, slope


def ce(logp_M: Tensor, weight_M: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy, ``-w * logp``."""
    return -weight_M * logp_M, -weight_M


def ref_kl(logp_M: Tensor, weight_M: Tensor, ref_M: Tensor, importance_M: Tensor) -> tuple[Tensor, Tensor]:
    """KL to a reference by k2 = (logp - ref)^2 / 2, times w and importance.

    Its gradient, sample by sample, is that of k1 = logp - ref detached inside the advantage (Schulman 2020,
    "Approximating KL divergence"); k1 itself as a loss has an expected gradient of zero.
    """
    gap = logp_M - ref_M
    return weight_M * importance_M * gap.square() / 2, weight_M * importance_M * gap
