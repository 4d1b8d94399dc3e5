"""Causal attention of a run of new tokens of one row over all that the row holds, in one of two ways."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.engine.processor import has_flags

AttendChunk = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""``attend(q [C, H, E], k [K, T, E], v [K, T, E], mask [C, T]) -> [C, H, E]`` for queries of the last C of T positions;
``mask`` is 0, or -inf where a key is later than the query."""

BLOCK = 64
"""Queries of one product (measured: scores of 128 no longer fit a cache beside long contexts)."""
FEWEST = 128
"""Shorter runs take as long in blocks, or longer."""


def attends_with(device: torch.device, dtype: torch.dtype) -> AttendChunk:
    """By products where only those use the processor's instructions for bfloat16, else by the fused kernel (which has
    its own for AMX)."""
    plain = device.type == "cpu" and dtype == torch.bfloat16 and has_flags("avx512_bf16") and not has_flags("amx_bf16")
    return attend_in_blocks if plain else attend_fused


def attend_fused(q_CHE: Tensor, k_KTE: Tensor, v_KTE: Tensor, mask_CT: Tensor) -> Tensor:
    whole = len(q_CHE) == k_KTE.shape[1]
    out = F.scaled_dot_product_attention(
        q_CHE.transpose(0, 1)[None],
        k_KTE[None],
        v_KTE[None],
        attn_mask=None if whole else mask_CT,
        is_causal=whole,
        enable_gqa=q_CHE.shape[1] > len(k_KTE),
    )
    return out[0].transpose(0, 1)


def attend_in_blocks(q_CHE: Tensor, k_KTE: Tensor, v_KTE: Tensor, mask_CT: Tensor) -> Tensor:
    """A block of queries at a time, over the keys that its last one sees; few queries by the fused kernel."""
    if len(q_CHE) < FEWEST:
        return attend_fused(q_CHE, k_KTE, v_KTE, mask_CT)
    (count, heads, dim), (kv_heads, total, _) = q_CHE.shape, k_KTE.shape
    # the heads that share keys are the queries of one head
    q_KCGE = (q_CHE / math.sqrt(dim)).reshape(count, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    out_CHE = q_CHE.new_empty(count, heads, dim)
    out_KCGE = out_CHE.view(count, kv_heads, heads // kv_heads, dim).transpose(0, 1)
    for first in range(0, count, BLOCK):
        block = slice(first, min(first + BLOCK, count))
        size, seen = block.stop - first, total - count + block.stop
        scores = torch.bmm(q_KCGE[:, block].flatten(1, 2), k_KTE[:, :seen].transpose(1, 2))
        new = slice(seen - size, seen)  # keys before these are seen by all queries of the block
        scores.view(kv_heads, size, -1, seen)[..., new].add_(mask_CT[block, None, new])
        mixed = torch.bmm(scores.softmax(-1), v_KTE[:, :seen])
        out_KCGE[:, block].copy_(mixed.view(kv_heads, size, -1, dim))
    return out_CHE
