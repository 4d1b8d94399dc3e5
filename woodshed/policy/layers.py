"""Rotary embeddings and one decoder layer.

Axis names: B batch, T time, N tokens (any leading shape), D model, H query heads, K key/value heads, E head width.
At small widths the cost of a step is the number of operations, so q, k and v share one matrix, gate and up share
another, query and key heads are normalised and rotated together, and nothing is reshaped twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import AttentionFn
from .config import DecoderConfig
from .moe import Experts
from .operators import TORCH

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``linear(x [..., I], weight [O, I], bias [O] or None) -> [..., O]``."""


def inverse_frequencies(config: DecoderConfig) -> Tensor:
    """Rotary frequencies, float64 ``[Dh / 2]``: theta^(-2i/Dh) (RoFormer, Su et al. 2021), scaled by the config's rule
    (linear, or Llama 3.1's)."""
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequency = config.rope_theta**-exponent
    scaling = config.rope_scaling
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength = 2 * math.pi / frequency
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = ((scaling.original_max_positions / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def rope_table(config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Table of rotations ``[max_positions, 2 Dh]``: cos of both halves, then sin with the first half negated (see
    ``operators.rotate``)."""
    positions = torch.arange(config.max_positions, dtype=torch.float64)
    angle = positions[:, None] * inverse_frequencies(config)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat((cos, cos, -sin, sin), dim=-1).to(device=device, dtype=dtype)


class Layer(nn.Module):
    """Pre-norm attention and feed-forward (SwiGLU or mixture of experts) with residual connections."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        c = config
        self.index, self.eps = index, c.norm_eps
        self.linear: Linear = F.linear
        self.operators = TORCH
        self.heads, self.kv_heads, self.head_dim = c.num_heads, c.num_kv_heads, c.head_dim
        qkv_dim = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        self.attn_norm = nn.Parameter(torch.empty(c.d_model))
        self.qkv = nn.Parameter(torch.empty(qkv_dim, c.d_model))
        self.qkv_bias = nn.Parameter(torch.empty(qkv_dim)) if c.qkv_bias else None
        self.q_norm = nn.Parameter(torch.empty(c.head_dim)) if c.qk_norm else None
        self.k_norm = nn.Parameter(torch.empty(c.head_dim)) if c.qk_norm else None
        self.out = nn.Parameter(torch.empty(c.d_model, c.num_heads * c.head_dim))
        self.out_bias = nn.Parameter(torch.empty(c.d_model)) if c.out_bias else None
        self.mlp_norm = nn.Parameter(torch.empty(c.d_model))
        self.experts: Experts | None = None
        if c.is_moe(index):
            self.experts = Experts(c)
        else:
            self.gate_up = nn.Parameter(torch.empty(2 * c.d_ff, c.d_model))
            self.down = nn.Parameter(torch.empty(c.d_model, c.d_ff))

    def forward(
        self,
        x: Tensor,
        turn: Tensor,
        attention_fn: AttentionFn,
        replay: Tensor | None,
        replay_ratio: float,
        ends: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x ``[..., D]``, turn ``[..., 2 Dh]`` (rows of ``rope_table``) -> (x ``[..., D]``, chosen experts int64
        ``[..., K]`` or None). With ``ends`` int64 ``[M]``, x is ``[N, D]`` -> ``[M, D]``: only keys and values are
        computed for the other positions."""
        x, q, k, v = self.heads_of(x, turn)
        if ends is not None:
            x, q = x.index_select(0, ends), q.index_select(0, ends)
            replay = None if replay is None else replay.index_select(0, ends)
        attended = self.linear(attention_fn(self.index, q, k, v).flatten(-2), self.out, self.out_bias)
        x, y = self.operators.add_norm(x, attended, self.mlp_norm, self.eps)
        if self.experts is not None:
            mixed, chosen = self.experts(y, replay, replay_ratio)
            return x + mixed, chosen
        return x + self.linear(self.operators.swiglu(self.linear(y, self.gate_up, None)), self.down, None), None

    def heads_of(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x ``[..., D]``, its queries ``[..., H, Dh]``, and its keys and values ``[..., Hkv, Dh]``; queries and
        keys are normalised (if the policy does so) and rotated."""
        x, y = self.operators.add_norm(x, None, self.attn_norm, self.eps)
        qkv = self.linear(y, self.qkv, self.qkv_bias)
        return x, *self.operators.split_heads(qkv, self.q_norm, self.k_norm, turn, self.heads, self.kv_heads, self.eps)
