"""The loss parts: plain functions of the weighted tokens, differentiated by autograd.

A part gets C weighted tokens and returns ``[C]`` values; ``loss.backward`` sums them, divides by the part's
denominator, and takes the derivative with respect to ``Tokens.logp_C``. To add a part, write the function, and name it
in ``PARTS`` here and, with what it needs, in ``batch.PARTS``. ``hint_kl`` is not here, because it needs the logits of
two policies (``divergence.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .settings import ClipSettings, ImportanceSettings, TrainSettings


@dataclass(frozen=True)
class Tokens:
    """C tokens that a part weighs; tensors are float32 ``[C]``.

    ``logp_C`` = log pi(token | before) is the only one with a gradient. ``weight_C`` is never 0. ``behaviour_C``:
    log-probability under the policy that sampled the token, nan if the token was not sampled. ``ref_C``:
    log-probability under the reference, nan if unknown. ``importance_C``: see ``importance``. ``sequence_gap_C``: for
    parts in ``SEQUENCE_LEVEL``, mean of logp - behaviour over the tokens that the part weighs in the token's sequence;
    else nan.
    """

    logp_C: Tensor
    weight_C: Tensor
    behaviour_C: Tensor
    ref_C: Tensor
    importance_C: Tensor
    sequence_gap_C: Tensor


LossPart = Callable[[Tokens, TrainSettings], Tensor]


def importance(logp_C: Tensor, behaviour_C: Tensor, settings: ImportanceSettings) -> Tensor:
    """Return the importance weight ``[C]`` of each token, from the ratio r = exp(logp - behaviour); r is 1 if behaviour
    is nan.

    ``mask``: r if it is in [low, high], else 0 (IcePop, Ling team 2025). ``truncate``: min(r, cap) (Munos et al. 2016;
    IMPALA). ``off``: 1. The result is detached: policy gradients are weighted by the ratio, which is not
    differentiated.
    """
    if settings.mode == "off":
        return torch.ones_like(logp_C)
    ratio = (logp_C.detach() - behaviour_C).exp().nan_to_num(nan=1.0)
    if settings.mode == "truncate":
        return ratio.clamp(max=settings.cap)
    return torch.where((ratio >= settings.low) & (ratio <= settings.high), ratio, 0.0)


def rl(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """Policy gradient, ``-w * importance * logp`` (REINFORCE; w is the advantage)."""
    return -tokens.weight_C * tokens.importance_C * tokens.logp_C


def ppo(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """Clipped surrogate, ``-min(r w, clip(r) w)`` (PPO, Schulman et al. 2017; the loss of GRPO). The old policy in r is
    the one that sampled the token, whichever version that was; its log-probabilities are not recomputed."""
    return _clipped((tokens.logp_C - tokens.behaviour_C).exp(), tokens.weight_C, settings.clip)


def gspo(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """Clipped surrogate with one ratio s per sequence, the geometric mean of its tokens' ratios (GSPO-token, Zheng et
    al. 2025, section 4.3): each token has the value of s and the gradient s * grad logp."""
    ratio_C = (tokens.sequence_gap_C + tokens.logp_C - tokens.logp_C.detach()).exp()
    return _clipped(ratio_C, tokens.weight_C, settings.sequence_clip)


def _clipped(ratio_C: Tensor, weight_C: Tensor, clip: ClipSettings) -> Tensor:
    return -torch.minimum(ratio_C * weight_C, ratio_C.clamp(1 - clip.low, 1 + clip.high) * weight_C)


def ce(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """Cross-entropy, ``-w * logp``."""
    return -tokens.weight_C * tokens.logp_C


def ref_kl(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """KL to the reference, times w and importance, by an estimator of Schulman 2020, "Approximating KL divergence".

    With gap = logp - ref: ``k1`` is gap, detached inside the advantage, so that its gradient is gap * grad logp (k1
    itself as a loss has a gradient of zero in expectation); ``k2`` is gap^2 / 2, whose gradient is the same; ``k3`` is
    exp(-gap) - 1 + gap, whose gradient follows the forward KL.
    """
    gap_C = tokens.logp_C - tokens.ref_C
    if settings.kl.estimator == "k1":
        value_C = gap_C.detach() * (1 + tokens.logp_C - tokens.logp_C.detach())
    elif settings.kl.estimator == "k2":
        value_C = gap_C.square() / 2
    else:
        value_C = (-gap_C).exp() - 1 + gap_C
    return tokens.weight_C * tokens.importance_C * value_C


PARTS: dict[str, LossPart] = {"rl": rl, "ppo": ppo, "gspo": gspo, "ce": ce, "ref_kl": ref_kl}
SEQUENCE_LEVEL = ("gspo",)
"""Parts that need ``Tokens.sequence_gap_C``, for which a micro-batch's log-probabilities are computed beforehand."""
POLICY_GRADIENT = ("rl", "ppo", "gspo")
"""Policy-gradient parts: minus their slope, divided by the weight, is the importance weight of a token."""
