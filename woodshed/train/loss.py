"""Forward and backward pass of one micro-batch without holding the logits of all its tokens at once.

loss = sum over parts of (1 / denominator) * sum over t of weight[t] * part(t). Logits are computed for weighted tokens
only, one chunk at a time; each chunk's gradient is propagated into the head and the hidden states, then its logits are
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.operators import Operators

from . import parts
from .batch import BatchError
from .collate import MicroBatch
from .divergence import hint_divergence
from .settings import TrainSettings
from .teacher import Teacher


@dataclass
class TokenStats:
    """Statistics of the weighted tokens of a step; lists of 1-D tensors, one per chunk.

    ``loss``: value per part, already divided by its denominator. ``dlogp``: logp - behaviour of tokens that a
    policy-gradient part (``rl``, ``ppo``, ``gspo``) weighs. ``importance``: factor on the gradient of the same tokens
    besides their weight. ``gap``: logp - ref of tokens that ``ref_kl`` weighs. ``entropy``: in nats, of every weighted
    token. ``hint_value``, ``hint_gap`` and ``hint_gate`` of tokens that ``hint_kl`` weighs: see
    ``divergence.HintTokens``.
    """

    loss: dict[str, float] = field(default_factory=dict)
    dlogp: list[Tensor] = field(default_factory=list)
    importance: list[Tensor] = field(default_factory=list)
    gap: list[Tensor] = field(default_factory=list)
    entropy: list[Tensor] = field(default_factory=list)
    hint_value: list[Tensor] = field(default_factory=list)
    hint_gap: list[Tensor] = field(default_factory=list)
    hint_gate: list[Tensor] = field(default_factory=list)
    trained_tokens: int = 0


def backward(
    decoder: Decoder,
    micro: MicroBatch,
    denominators: Mapping[str, float],
    settings: TrainSettings,
    seen: TokenStats,
    teacher: Teacher | None = None,
) -> None:
    """Add this micro-batch's gradient to ``.grad`` of the decoder's parameters and its statistics to ``seen``.

    ``teacher``: result of ``read_hints`` for the batch. Raises BatchError if ``ref_kl`` weighs tokens and
    ``micro.ref_M`` is None, or ``hint_kl`` weighs tokens and ``teacher`` is None.
    """
    if micro.ref_M is None and "ref_kl" in micro.weights and bool(micro.weights["ref_kl"].any()):
        raise BatchError("weights['ref_kl'] needs ref_logprobs; let Reference fill them in")
    if teacher is None and "hint_kl" in micro.weights and bool(micro.weights["hint_kl"].any()):
        raise BatchError("weights['hint_kl'] needs a teacher that has read the hints (read_hints)")
    hidden_MD = micro.hidden(decoder)
    grad_MD = torch.empty_like(hidden_MD)
    chunk = max(1, settings.logits_elements // decoder.config.vocab_size)
    gaps = _sequence_gaps(decoder, hidden_MD.detach(), micro, chunk)
    for start in range(0, len(hidden_MD), chunk):
        span = slice(start, start + chunk)
        leaf_CD = hidden_MD[span].detach().requires_grad_()
        with torch.enable_grad():
            logits_CV = decoder.logits(leaf_CD)
        grad_CV = _logits_grad(
            decoder.operators, logits_CV.detach(), micro, span, gaps, denominators, settings, seen, teacher
        )
        logits_CV.backward(grad_CV)
        assert leaf_CD.grad is not None
        grad_MD[span] = leaf_CD.grad
    hidden_MD.backward(grad_MD)
    seen.trained_tokens += len(hidden_MD)


@torch.no_grad()
def _logits_grad(
    operators: Operators,
    logits_CV: Tensor,
    micro: MicroBatch,
    span: slice,
    gaps: Mapping[str, Tensor],
    denominators: Mapping[str, float],
    settings: TrainSettings,
    seen: TokenStats,
    teacher: Teacher | None,
) -> Tensor:
    """Return d loss / d logits ``[C, V]`` of a chunk, written into the memory of the logits (autograd keeps only the
    inputs of a linear layer, so they are free).

    All parts except ``hint_kl`` depend on the network through logp alone, so the gradient is slope * (onehot -
    softmax), with the slope d loss / d logp from autograd: no graph over the vocabulary is kept. Tokens that a grammar
    forbade or that top-p left out have probability 0 here, as at sampling, and so no gradient.
    """
    logits_CV = among_allowed(logits_CV, micro, span)
    lse_C, entropy_C = operators.logsumexp(logits_CV, settings.entropy)
    if entropy_C is not None:
        seen.entropy.append(entropy_C)
    logp_C = logits_CV.gather(1, micro.target_M[span, None]).squeeze(1) - lse_C
    slope_C = torch.zeros_like(logp_C)
    for part, weight_M in micro.weights.items():
        used_C = weight_M[span] != 0
        if part != "hint_kl" and bool(used_C.any()):
            tokens = _tokens(logp_C[used_C], weight_M[span][used_C], micro, span, used_C, gaps.get(part), settings)
            slope_C[used_C] += _slope(part, tokens, denominators[part], settings, seen)
    hinted_C = micro.weights["hint_kl"][span] != 0 if "hint_kl" in micro.weights else None
    hint_UV = None
    if teacher is not None and hinted_C is not None and bool(hinted_C.any()):
        hint_UV = _hint_grad(logits_CV, micro, span, hinted_C, teacher, denominators, settings, seen)
    grad_CV = operators.logits_gradient(logits_CV, micro.target_M[span], lse_C, slope_C)
    if hint_UV is not None:
        grad_CV[hinted_C] += hint_UV
    return grad_CV


def _hint_grad(
    logits_CV: Tensor,
    micro: MicroBatch,
    span: slice,
    used_C: Tensor,
    teacher: Teacher,
    denominators: Mapping[str, float],
    settings: TrainSettings,
    seen: TokenStats,
) -> Tensor:
    """Return d loss / d logits ``[U, V]`` of ``hint_kl``, for the U tokens of a chunk that it weighs."""
    index_U = micro.index_M[span][used_C.cpu().numpy()]
    student_UV = logits_CV[used_C]
    teacher_UV = teacher.logits(index_U).masked_fill(student_UV == -torch.inf, -torch.inf)
    counts_U = torch.from_numpy(teacher.counts_N[index_U]).to(student_UV.device)
    target_U, weight_U = micro.target_M[span][used_C], micro.weights["hint_kl"][span][used_C] * counts_U
    logp_U = student_UV.gather(1, target_U[:, None]).squeeze(1) - student_UV.logsumexp(-1)
    importance_U = parts.importance(logp_U, micro.behaviour_M[span][used_C], settings.importance)
    with torch.enable_grad():
        found = hint_divergence(student_UV.requires_grad_(), teacher_UV, target_U, importance_U, settings.hint_kl)
        value = (weight_U * found.value_C).sum()
        (grad_UV,) = torch.autograd.grad(value, student_UV)
    total = float((weight_U * found.value_C.detach()).sum(dtype=torch.float64))
    seen.loss["hint_kl"] = seen.loss.get("hint_kl", 0.0) + total / denominators["hint_kl"]
    seen.hint_value.append(found.value_C.detach() * counts_U)
    seen.hint_gap.append(found.gap_C)
    seen.hint_gate.append(found.gate_C * counts_U)
    return grad_UV / denominators["hint_kl"]


def _tokens(
    logp_C: Tensor,
    weight_C: Tensor,
    micro: MicroBatch,
    span: slice,
    used_C: Tensor,
    gap_M: Tensor | None,
    settings: TrainSettings,
) -> parts.Tokens:
    behaviour_C = micro.behaviour_M[span][used_C]
    unknown_C = torch.full_like(logp_C, torch.nan)
    return parts.Tokens(
        logp_C.requires_grad_(),
        weight_C,
        behaviour_C,
        unknown_C if micro.ref_M is None else micro.ref_M[span][used_C],
        parts.importance(logp_C, behaviour_C, settings.importance),
        unknown_C if gap_M is None else gap_M[span][used_C],
    )


def _slope(part: str, tokens: parts.Tokens, denominator: float, settings: TrainSettings, seen: TokenStats) -> Tensor:
    """Return d loss / d logp ``[C]`` of one part, and add its statistics to ``seen``."""
    with torch.enable_grad():
        value_C = parts.PARTS[part](tokens, settings)
        (slope_C,) = torch.autograd.grad(value_C.sum(), tokens.logp_C)
    seen.loss[part] = seen.loss.get(part, 0.0) + float(value_C.sum(dtype=torch.float64)) / denominator
    if part in parts.POLICY_GRADIENT:
        seen.dlogp.append(tokens.logp_C.detach() - tokens.behaviour_C)
        seen.importance.append(slope_C / -tokens.weight_C)
    elif part == "ref_kl":
        seen.gap.append(tokens.logp_C.detach() - tokens.ref_C)
    return slope_C / denominator


@torch.no_grad()
def _sequence_gaps(decoder: Decoder, hidden_MD: Tensor, micro: MicroBatch, chunk: int) -> dict[str, Tensor]:
    """Return ``Tokens.sequence_gap_C`` of all tokens, ``[M]``, for each part that needs it."""
    needed = {part: micro.weights[part] != 0 for part in parts.SEQUENCE_LEVEL if part in micro.weights}
    if not any(bool(used_M.any()) for used_M in needed.values()):
        return {}
    spans = [slice(start, start + chunk) for start in range(0, len(hidden_MD), chunk)]
    logp_M = torch.cat([target_logps(decoder, hidden_MD[span], micro, span) for span in spans])
    gap_M, found = logp_M - micro.behaviour_M, {}
    for part, used_M in needed.items():
        _, of_M, counts_S = torch.unique_consecutive(micro.sequence_M[used_M], return_inverse=True, return_counts=True)
        means_S = torch.segment_reduce(gap_M[used_M], "mean", lengths=counts_S)
        found[part] = torch.full_like(gap_M, torch.nan).masked_scatter_(used_M, means_S[of_M])
    return found


def target_logps(decoder: Decoder, hidden_CD: Tensor, micro: MicroBatch, span: slice) -> Tensor:
    """Return log pi(token | before) ``[C]`` of the targets of a chunk, normalised over the allowed tokens. Bitwise
    equal to what the loss computes from the same weights."""
    logits_CV = among_allowed(decoder.logits(hidden_CD), micro, span)
    lse_C, _ = decoder.operators.logsumexp(logits_CV, False)
    return logits_CV.gather(1, micro.target_M[span, None]).squeeze(1) - lse_C


def among_allowed(logits_CV: Tensor, micro: MicroBatch, span: slice) -> Tensor:
    """Return the logits ``[C, V]`` with those of forbidden tokens set to -inf."""
    if micro.allowed is None or micro.allowed_M is None:
        return logits_CV
    of_C = micro.allowed_M[span]
    if not bool((of_C >= 0).any()):
        return logits_CV
    return logits_CV.masked_fill(~micro.allowed.mask(of_C, logits_CV.shape[1]), -torch.inf)
