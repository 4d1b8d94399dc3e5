"""Attention of one iteration over the key/value cache: the ``attend`` that the engine passes to the decoder.

The flat batch ``[N]`` holds first one token for every decoding row, in order of rows, then chunks of prompts. Decoding
rows are computed in runs of neighbouring cache rows (see ``spans``), chunks one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from woodshed.engine.cache import RowCache
from woodshed.engine.spans import cut_rows

SPAN_OVERHEAD_BYTES = 400_000
"""Keys and values of one layer that a core reads in the time that one more span costs (measured: about 30 us)."""


@dataclass(frozen=True)
class Chunk:
    """Tokens ``[start, start + count)`` of a row's sequence."""

    row: int
    start: int
    count: int


@dataclass(frozen=True)
class _Span:
    """A run of cache rows and its place in the padded batch; ``mask`` ``[n, 1, t]`` is 0 or -inf."""

    first_row: int
    at: int
    rows: int
    length: int
    mask: Tensor | None


class CausalMasks:
    """Masks for a chunk that starts anywhere, as views of one table."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._past = 0
        self._table = torch.zeros((0, 0))

    def get(self, start: int, count: int) -> Tensor:
        """``[count, start + count]``: 0 where position j <= start + i, else -inf."""
        if self._past < start or len(self._table) < count:
            past = max(self._past, -(-start // 512) * 512)
            size = max(len(self._table), -(-count // 64) * 64)
            i = torch.arange(size, device=self.device)[:, None]
            j = torch.arange(past + size, device=self.device)[None, :]
            table = torch.zeros((size, past + size), dtype=self.dtype, device=self.device)
            self._table = table.masked_fill_(j - past > i, -torch.inf)
            self._past = past
        return self._table[:count, self._past - start : self._past + count]


class StepAttention:
    """Plan of one iteration. ``decode_rows`` int64 ``[D]`` strictly increasing; each has one new token at position
    ``cache.lengths[row]``. Writes the keys and values of all new tokens, then attends (causally, within each row).
    """

    def __init__(
        self, cache: RowCache, heads: int, decode_rows: NDArray[np.int64], chunks: list[Chunk], masks: CausalMasks
    ) -> None:
        self.cache, self.heads, self.masks, self.chunks = cache, heads, masks, chunks
        self.groups = heads // cache.kv_heads
        self.scale = 1.0 / math.sqrt(cache.head_dim)
        self.decoding = len(decode_rows)
        rows = np.concatenate([decode_rows, *(np.full(c.count, c.row) for c in chunks)]).astype(np.int64)
        decode_positions = cache.lengths[decode_rows]
        positions = [decode_positions, *(np.arange(c.start, c.start + c.count) for c in chunks)]
        self.rows, self.positions = rows, np.concatenate(positions).astype(np.int64)
        heads_K = np.arange(cache.kv_heads) * cache.length
        slots = (rows * (cache.kv_heads * cache.length) + self.positions)[:, None] + heads_K
        self._slots = torch.from_numpy(slots.reshape(-1)).to(cache.device)
        self._causal = [masks.get(c.start, c.count) for c in chunks]
        self._spans: list[_Span] = []
        self._spread: Tensor | None = None
        self._padded = 0
        if self.decoding:
            self._plan_decode(decode_rows, decode_positions + 1)

    def _plan_decode(self, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        cache = self.cache
        per_token = cache.token_bytes / cache.layers
        # on a GPU launches dominate: one span
        overhead = SPAN_OVERHEAD_BYTES / per_token if cache.device.type == "cpu" else math.inf
        at = 0
        place = np.empty(len(rows), np.int64)
        for span in cut_rows(rows.tolist(), lengths.tolist(), overhead):
            n = span.stop - span.start
            first, last = np.searchsorted(rows, (span.start, span.stop))
            local = rows[first:last] - span.start
            place[first:last] = at + local
            filled = np.full(n, span.length)  # an idle row in between computes something finite that nobody reads
            filled[local] = lengths[first:last]
            mask = None
            if (filled != span.length).any():
                hidden = np.arange(span.length) >= filled[:, None]
                mask = torch.from_numpy(np.where(hidden, -np.inf, 0.0).astype(np.float32))[:, None]
                mask = mask.to(device=cache.device, dtype=cache.dtype)
            self._spans.append(_Span(span.start, at, n, span.length, mask))
            at += n
        self._padded = at
        if at != len(rows):
            source = np.zeros(at, np.int64)
            source[place] = np.arange(len(rows))
            self._spread = torch.from_numpy(source).to(cache.device)
            self._collect = torch.from_numpy(place).to(cache.device)

    def __call__(self, layer: int, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        keys.view(-1, keys.shape[-1]).index_copy_(0, self._slots, k_NKE.reshape(-1, k_NKE.shape[-1]))
        values.view(-1, values.shape[-1]).index_copy_(0, self._slots, v_NKE.reshape(-1, v_NKE.shape[-1]))
        if not self.chunks:
            return self._decode(q_NHE, keys, values)
        parts = [self._decode(q_NHE[: self.decoding], keys, values)] if self.decoding else []
        at = self.decoding
        for chunk, mask in zip(self.chunks, self._causal):
            parts.append(self._prefill(q_NHE[at : at + chunk.count], keys[chunk.row], values[chunk.row], chunk, mask))
            at += chunk.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode(self, q_DHE: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q = (q_DHE if self._spread is None else q_DHE.index_select(0, self._spread)) * self.scale
        kv_heads, length, dim = self.cache.kv_heads, self.cache.length, self.cache.head_dim
        q = q.reshape(self._padded * kv_heads, self.groups, dim)
        out = q.new_empty((self._padded * kv_heads, self.groups, dim))
        for span in self._spans:
            batch, first = span.rows * kv_heads, span.first_row * kv_heads
            low, high = span.at * kv_heads, span.at * kv_heads + batch
            # rows and heads are one batch axis of constant stride: no copy
            k = keys.as_strided((batch, dim, span.length), (length * dim, 1, dim), first * length * dim)
            v = values.as_strided((batch, span.length, dim), (length * dim, dim, 1), first * length * dim)
            scores = torch.bmm(q[low:high], k)
            if span.mask is not None:
                scores.view(span.rows, self.heads, span.length).add_(span.mask)
            torch.bmm(scores.softmax(-1), v, out=out[low:high])
        out = out.view(self._padded, self.heads, dim)
        return out if self._spread is None else out.index_select(0, self._collect)

    def _prefill(self, q_CHE: Tensor, keys_KTE: Tensor, values_KTE: Tensor, chunk: Chunk, mask: Tensor) -> Tensor:
        end = chunk.start + chunk.count
        causal = chunk.start == 0
        out = F.scaled_dot_product_attention(
            q_CHE.transpose(0, 1)[None],
            keys_KTE[None, :, :end],
            values_KTE[None, :, :end],
            attn_mask=None if causal else mask,
            is_causal=causal,
            enable_gqa=self.groups > 1,
        )
        return out[0].transpose(0, 1)
