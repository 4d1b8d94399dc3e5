"""The loss parts: plain functions of what is known of each weighted token, differentiated by autograd.

A part gets C weighted tokens and gives ``[C]`` values, of which ``loss.backward`` sums up, divides by the part's
denominator, and takes the derivative with respect to ``Tokens.logp_C``. To add one: write the function, and name it in
``PARTS`` here and, with what it needs, in ``batch.PARTS``. ``hint_kl`` needs the logits of two policies instead
(``divergence.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .settings import ClipSettings, ImportanceSettings, TrainSettings


@dataclass(frozen=True)
class Tokens:
    """C tokens that a part weighs; float32 ``[C]``.

    ``logp_C`` = log pi(token | before) is the only one with a gradient. ``weight_C`` is never 0. ``behaviour_C``: under
    the policy that sampled the token, nan where nothing sampled it. ``ref_C``: under the reference, nan where unknown.
    ``importance_C``: see ``importance``. ``sequence_gap_C``: mean of logp - behaviour over the tokens that the part
    weighs in the token's sequence, for parts that are named in ``SEQUENCE_LEVEL``; else nan.
    """

    logp_C: Tensor
    weight_C: Tensor
    behaviour_C: Tensor
    ref_C: Tensor
    importance_C: Tensor
    sequence_gap_C: Tensor


LossPart = Callable[[Tokens, TrainSettings], Tensor]


def importance(logp_C: Tensor, behaviour_C: Tensor, settings: ImportanceSettings) -> Tensor:
    """Weight ``[C]`` of each token for being off-policy, r = exp(logp - behaviour); 1 where behaviour is nan.

    ``mask``: r in [low, high], else 0 (IcePop, Ling team 2025). ``truncate``: min(r, cap) (Munos et al. 2016;
    IMPALA). ``off``: 1. Detached: policy gradients weight by the ratio, they do not differentiate it.
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
    """Clipped surrogate, ``-min(r w, clip(r) w)`` (PPO, Schulman et al. 2017; the loss of GRPO). Without a pass over
    the data for each update, behaviour is the policy that sampled, whichever version that was."""
    return _clipped((tokens.logp_C - tokens.behaviour_C).exp(), tokens.weight_C, settings.clip)


def gspo(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """The same with one ratio s for a whole sequence, the geometric mean of its tokens' (GSPO-token, Zheng et al. 2025,
    section 4.3): in value s, and in gradient s * grad logp of each token."""
    ratio_C = (tokens.sequence_gap_C + tokens.logp_C - tokens.logp_C.detach()).exp()
    return _clipped(ratio_C, tokens.weight_C, settings.sequence_clip)


def _clipped(ratio_C: Tensor, weight_C: Tensor, clip: ClipSettings) -> Tensor:
    return -torch.minimum(ratio_C * weight_C, ratio_C.clamp(1 - clip.low, 1 + clip.high) * weight_C)


def ce(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """Cross-entropy, ``-w * logp``."""
    return -tokens.weight_C * tokens.logp_C


def ref_kl(tokens: Tokens, settings: TrainSettings) -> Tensor:
    """KL to a reference, times w and importance, by an estimator of Schulman 2020, "Approximating KL divergence".

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
"""Parts that need ``Tokens.sequence_gap_C``: the log-probabilities of a micro-batch are computed once before."""
POLICY_GRADIENT = ("rl", "ppo", "gspo")
"""Parts whose slope over their weight is the importance of a token."""
