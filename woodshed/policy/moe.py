"""Mixture of experts with softmax top-k routing (Qwen3-MoE) and router replay.

Router replay ("R3"): the trainer uses the experts that the engine chose and its own scores, so that the gradient
still reaches the router::

    g_i = I_i exp(s_i) / sum_j I_j exp(s_j),   y = sum_i g_i E_i(x),   I = the engine's choice
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import DecoderConfig


def choose_experts(scores: Tensor, k: int, replay: Tensor | None = None, ratio: float = 0.0) -> Tensor:
    """Experts per token, int64 ``[N, k]``: the top k of ``scores`` ``[N, E]``, or the replayed ones.

    ``replay`` is integer ``[N, k]``. A replayed expert is kept when it is not -1, not a repetition, and its score is
    at least ``ratio`` times the token's weakest own top-k score; free slots are filled from the own top k in order.
    ``ratio`` 0 keeps every replayed expert; 1 keeps only what own routing would choose too. Raises ValueError when
    ``replay`` has the wrong shape or names an expert that does not exist.
    """
    own_scores, own = torch.topk(scores, k, dim=-1)
    if replay is None:
        return own
    if replay.shape != own.shape:
        raise ValueError(f"routes of a layer have shape {list(replay.shape)}, expected {list(own.shape)}")
    replay = replay.to(device=own.device, dtype=torch.int64)
    low, high = (int(v) for v in torch.aminmax(replay)) if replay.numel() else (0, 0)
    if low < -1 or high >= scores.shape[-1]:
        raise ValueError(f"routes name expert {high if low >= -1 else low}; this layer has {scores.shape[-1]}")
    candidates = torch.cat((replay, own), dim=-1)
    usable = candidates >= 0
    if ratio > 0:
        kept = scores.gather(-1, replay.clamp_min(0)) >= ratio * own_scores[:, -1:]
        usable = usable & torch.cat((kept, torch.ones_like(kept)), dim=-1)
    elif low >= 0 and k == 1:
        return replay
    same = (candidates[:, :, None] == candidates[:, None, :]) & usable[:, None, :]
    repeated = same.tril(-1).any(-1)
    order = torch.argsort((~usable | repeated).to(torch.int8), dim=-1, stable=True)[:, :k]
    return candidates.gather(-1, order)


def count_replay(scores: Tensor, chosen: Tensor, replay: Tensor) -> Tensor:
    """Count in the arguments and the result of ``choose_experts``, int64 ``[3]``: experts to replay (not -1), those of
    them that own routing would not have chosen, and those that were not used because they were implausible."""
    own = torch.topk(scores, replay.shape[-1], dim=-1).indices
    asked = replay >= 0
    differs, unused = (asked & ~(replay[..., None] == some[..., None, :]).any(-1) for some in (own, chosen))
    return torch.stack((asked.sum(), differs.sum(), unused.sum()))


class Experts(nn.Module):
    """Router ``[E, D]`` and SwiGLU experts: gate and up ``[E, 2 I, D]``, down ``[E, D, I]``.

    ``replayed``: sums of ``count_replay`` over the forward passes with a gradient; the reader resets it.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.k, self.normalise = config.num_experts_per_tok, config.norm_topk_prob
        experts, hidden, d_model = config.num_experts, config.moe_d_ff, config.d_model
        self.router = nn.Parameter(torch.empty(experts, d_model))
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * hidden, d_model))
        self.down = nn.Parameter(torch.empty(experts, d_model, hidden))
        self.replayed: Tensor | None = None

    def forward(self, x: Tensor, replay: Tensor | None = None, ratio: float = 0.0) -> tuple[Tensor, Tensor]:
        """x ``[..., D]``, replay ``[..., K]`` -> (y ``[..., D]``, chosen int64 ``[..., K]``)."""
        x_ND = x.reshape(-1, x.shape[-1])
        logits_NE = F.linear(x_ND, self.router).float()
        replay_NK = None if replay is None else replay.reshape(-1, replay.shape[-1])
        with torch.no_grad():
            scores_NE = logits_NE.softmax(-1)
            chosen_NK = choose_experts(scores_NE, self.k, replay_NK, ratio)
        if replay_NK is not None and torch.is_grad_enabled():
            counts = count_replay(scores_NE.detach(), chosen_NK, replay_NK)
            self.replayed = counts if self.replayed is None else self.replayed + counts
        if self.normalise:
            # Softmax over the chosen logits equals the chosen probabilities divided by their sum.
            gates_NK = logits_NE.gather(-1, chosen_NK).softmax(-1)
        else:
            gates_NK = logits_NE.softmax(-1).gather(-1, chosen_NK)
        y_ND = self._mix(x_ND, chosen_NK, gates_NK.to(x.dtype))
        return y_ND.view(x.shape), chosen_NK.view(*x.shape[:-1], self.k)

    def _mix(self, x_ND: Tensor, chosen_NK: Tensor, gates_NK: Tensor) -> Tensor:
        """Sort the (token, slot) pairs by expert, run each expert on its rows, restore the order, sum by weight."""
        experts = self.router.shape[0]
        flat = chosen_NK.reshape(-1)
        order = torch.argsort(flat, stable=True)
        rows = x_ND[order // self.k]
        counts = torch.bincount(flat, minlength=experts).tolist()
        parts, start = [], 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            gate, up = F.linear(rows[start : start + count], self.gate_up[expert]).chunk(2, -1)
            parts.append(F.linear(F.silu(gate) * up, self.down[expert]))
            start += count
        if not parts:
            return torch.zeros_like(x_ND)
        # The inverse permutation gives a fixed order of summation, which index_add on several threads would not.
        out_NKD = torch.cat(parts)[torch.argsort(order)].view(*chosen_NK.shape, x_ND.shape[-1])
        return (gates_NK.unsqueeze(-2) @ out_NKD).squeeze(-2)
