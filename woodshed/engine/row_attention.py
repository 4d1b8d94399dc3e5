"""Attention of one query for each of many cache rows, over runs of neighbouring rows (see ``spans``)."""

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
class _Span:
    """A run of cache rows and its place in the padded batch; ``mask`` ``[n, 1, t]`` is 0 or -inf."""

    first_row: int
    at: int
    rows: int
    length: int
    mask: Tensor | None


class RowAttention:
    """``rows`` int64 ``[D]`` strictly increasing, each with one query over its first ``lengths`` int64 ``[D]`` keys and
    values."""

    def __init__(self, cache: RowCache, heads: int, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.cache, self.heads = cache, heads
        self.groups = heads // cache.kv_heads
        self.scale = 1.0 / math.sqrt(cache.head_dim)
        # on a CPU, products of other formats than float32 copy what has gaps: all keys and values, every step
        self._fuses = cache.device.type == "cpu" and cache.dtype != torch.float32
        self._spans: list[_Span] = []
        self._spread: Tensor | None = None
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

    def __call__(self, layer: int, q_DHE: Tensor) -> Tensor:
        q = q_DHE if self._spread is None else q_DHE.index_select(0, self._spread)
        # the heads that share keys are the queries of one head
        q_PKGE = q.reshape(self._padded, self.cache.kv_heads, self.groups, self.cache.head_dim)
        attend = self._fused if self._fuses else self._products
        out = attend(q_PKGE, self.cache.keys[layer], self.cache.values[layer])
        out = out.reshape(self._padded, self.heads, self.cache.head_dim)
        return out if self._spread is None else out.index_select(0, self._collect)

    def _products(self, q_PKGE: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        kv_heads, length, dim = self.cache.kv_heads, self.cache.length, self.cache.head_dim
        q = (q_PKGE * self.scale).flatten(0, 1)
        out = torch.empty_like(q)
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
        return out

    def _fused(self, q_PKGE: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        outs = []
        for span in self._spans:
            rows = slice(span.first_row, span.first_row + span.rows)
            k, v = keys[rows, :, : span.length], values[rows, :, : span.length]
            mask = None if span.mask is None else span.mask[:, None]
            q = q_PKGE[span.at : span.at + span.rows]
            outs.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale))
        return outs[0] if len(outs) == 1 else torch.cat(outs)
