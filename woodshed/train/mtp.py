"""Self-distillation of a multi-token-prediction (MTP) head; the teacher is the network itself, which stays unchanged.

loss = sum over depths d, positions i of w[i] KL(p_i || q_i^d) / (D sum of w), where p_i is the network's distribution
at i (temperature 1, whole vocabulary) and q_i^d the head's distribution there after d of its own steps (forward KL with
soft targets, as in the recipe of Composer 2, section 3.1). Depth d starts from the network's hidden state at i - d, so
the head learns to continue from its own output as it does when it drafts. Before position 0, the hidden state is 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.mtp import MtpHead


def distill(
    decoder: Decoder,
    head: MtpHead,
    tokens_BT: Tensor,
    weights_BT: Tensor,
    *,
    depth: int = 2,
    denominator: float,
    logits_elements: int = 1 << 24,
) -> tuple[float, float]:
    """Add the gradient to the head's ``.grad`` and return (loss, agreement). Agreement is the share of the weight where
    the teacher and depth 1 have the same most probable token, as a greedy draft needs.

    ``tokens_BT``: int64, padded on the right; ``weights_BT``: float weight of the prediction made *at* each position,
    0 for padding. ``denominator``: sum of the weights of the optimizer step's whole batch. The decoder gets no
    gradient. Logits are computed for chunks of at most ``logits_elements`` numbers.
    """
    positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
    with torch.no_grad():
        hidden_BTD = decoder.forward(tokens_BT, positions_BT, causal_attend())
    loss = agreed = 0.0
    guess_BTD = hidden_BTD
    total = torch.zeros((), device=tokens_BT.device)
    for d in range(1, depth + 1):
        before_BTD = F.pad(guess_BTD, (0, 0, 1, -1))
        guess_BTD = head(decoder, before_BTD, tokens_BT, positions_BT, causal_attend())
        weights = weights_BT.clone()
        weights[:, :d] = 0.0  # no hidden state exists d positions before
        at_M = weights.reshape(-1).nonzero()[:, 0]
        if not len(at_M):
            continue
        teacher_MD = hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[at_M]
        student_MD = guess_BTD.reshape(-1, guess_BTD.shape[-1])[at_M]
        weights_M = weights.reshape(-1)[at_M] / (denominator * depth)
        grad_MD, part, same = _kl(decoder, teacher_MD, student_MD.detach(), weights_M, logits_elements)
        loss += part
        agreed += same * depth if d == 1 else 0.0
        total = total + (student_MD * grad_MD).sum()  # its gradient with respect to the student is grad_MD
    if total.requires_grad:
        total.backward()
    return loss, agreed


@torch.no_grad()
def _kl(
    decoder: Decoder, teacher_MD: Tensor, student_MD: Tensor, weights_M: Tensor, logits_elements: int
) -> tuple[Tensor, float, float]:
    """Return the gradient of sum of w KL(teacher || student) with respect to the student's hidden states ``[M, D]``,
    the sum itself, and the total weight of the tokens where both have the same most probable token.

    d KL / d logits = softmax(student) - softmax(teacher).
    """
    grad_MD = torch.empty_like(student_MD)
    head_VD = decoder.head_weight
    value = same = 0.0
    chunk = max(1, logits_elements // decoder.config.vocab_size)
    for start in range(0, len(student_MD), chunk):
        span = slice(start, start + chunk)
        p_CV = decoder.logits(teacher_MD[span]).log_softmax(-1)
        q_CV = decoder.logits(student_MD[span]).log_softmax(-1)
        w_C = weights_M[span]
        agree_C = p_CV.argmax(-1) == q_CV.argmax(-1)
        same += float((w_C * agree_C).sum())
        p = p_CV.exp()
        value += float((w_C * (p * (p_CV - q_CV)).sum(-1)).sum(dtype=torch.float64))
        grad_MD[span] = ((q_CV.exp_() - p) * w_C[:, None]).to(head_VD.dtype) @ head_VD
    return grad_MD, value, same
