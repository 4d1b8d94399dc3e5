"""The loss part ``hint_kl``: divergence of the student's next-token distribution from the teacher's.

p is the student's distribution, q the teacher's, which has no gradient. With logits z of the student, the gradient of
KL(q || p) is p - q and that of KL(p || q) is p * (log p - log q - KL(p || q)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .settings import HintKlSettings

FLOOR = -1e4
"""Stands for log 0: its exponential is 0 in any dtype, and two of them differ by 0 instead of nan."""


@dataclass(frozen=True)
class HintTokens:
    """Tensors ``[C]``. ``value_C``: divergence in nats times the gate, without the token weight; has a gradient.
    ``gap_C``: log q - log p of the sampled token. ``gate_C``: gate, 0 to 1."""

    value_C: Tensor
    gap_C: Tensor
    gate_C: Tensor


def hint_divergence(
    student_CV: Tensor, teacher_CV: Tensor, target_C: Tensor, importance_C: Tensor, settings: HintKlSettings
) -> HintTokens:
    """Return the divergence of each token from the logits ``[C, V]`` of student and teacher (-inf for tokens that a
    grammar forbade, in both alike).

    ``settings.form`` ``sampled``: log p - log q of the sampled token, detached, as a negative advantage, times the
    token's importance ratio; an estimate of the reverse KL whose gradient is unbiased if the student sampled the token.
    The other forms are sums over the vocabulary and need no importance ratio: ``forward`` KL(q || p), ``reverse``
    KL(p || q), ``jsd`` b KL(q || m) + (1 - b) KL(p || m) with m = b q + (1 - b) p (GKD, arXiv:2306.13649). ``top_k``
    above 0 compares the teacher's k likeliest tokens and, as one more outcome, all others together (SDPO,
    arXiv:2601.20802).
    """
    logp_CV = student_CV.log_softmax(-1).clamp(min=FLOOR)
    logq_CV = teacher_CV.detach().log_softmax(-1).clamp(min=FLOOR)
    logp_C, logq_C = (x.gather(-1, target_C[:, None]).squeeze(-1) for x in (logp_CV, logq_CV))
    gap_C = (logq_C - logp_C).detach()
    gate_C = hint_gate(gap_C, settings)
    if settings.form == "sampled":
        value_C = -gap_C * importance_C * (1 + logp_C - logp_C.detach())
    else:
        if 0 < settings.top_k < logq_CV.shape[-1]:
            logp_CV, logq_CV = _top(logp_CV, logq_CV, settings.top_k)
        value_C = _distance(logp_CV, logq_CV, settings)
    return HintTokens(gate_C * value_C, gap_C, gate_C)


def hint_gate(gap_C: Tensor, settings: HintKlSettings) -> Tensor:
    """Return the gate factor ``[C]`` of each token from the detached gap log q - log p of the sampled token.

    It is 1 if ``gate_low`` <= |gap| <= ``gate_high`` (0: no upper limit), else 0; times sigmoid(``gate_slope`` * gap)
    if ``gate_slope`` is above 0 (SDAR, arXiv:2605.15155: tokens that the teacher endorses count more than tokens that
    it rejects).
    """
    size_C = gap_C.abs()
    gate_C = (size_C >= settings.gate_low).to(gap_C.dtype)
    if settings.gate_high:
        gate_C = gate_C * (size_C <= settings.gate_high)
    return gate_C * (settings.gate_slope * gap_C).sigmoid() if settings.gate_slope else gate_C


def _top(logp_CV: Tensor, logq_CV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return log-probabilities ``[C, k + 1]`` of the teacher's k likeliest tokens and of all others together."""
    ids_CK = logq_CV.topk(k, dim=-1).indices

    def grouped(log_CV: Tensor) -> Tensor:
        rest_C1 = log_CV.scatter(-1, ids_CK, FLOOR).logsumexp(-1, keepdim=True)
        return torch.cat((log_CV.gather(-1, ids_CK), rest_C1), -1)

    return grouped(logp_CV), grouped(logq_CV)


def _distance(logp_CV: Tensor, logq_CV: Tensor, settings: HintKlSettings) -> Tensor:
    if settings.form == "forward":
        return _kl(logq_CV, logp_CV)
    if settings.form == "reverse":
        return _kl(logp_CV, logq_CV)
    b = settings.jsd_beta
    logm_CV = torch.logaddexp(logq_CV + math.log(b), logp_CV + math.log1p(-b))
    return b * _kl(logq_CV, logm_CV) + (1 - b) * _kl(logp_CV, logm_CV)


def _kl(loga_CV: Tensor, logb_CV: Tensor) -> Tensor:
    return (loga_CV.exp() * (loga_CV - logb_CV)).sum(-1)
