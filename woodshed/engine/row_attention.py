"""Attention of one query for each of many cache rows, computed together for runs of neighbouring rows.

A product over rows ``[start, stop)`` reads ``stop - start`` rows up to the length of the longest active one: reading
idle rows in between and the padding of short rows is wasted. Another product costs a fixed time. Rows are cut into runs
where that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.attention import aligned
from woodshed.policy.processor import onednn_multiplies_bfloat16

from .cache import RowCache


@dataclass(frozen=True)
class RowSpan:
    """Cache rows ``[start, stop)``, of which the first ``length`` tokens are read."""

    start: int
    stop: int
    length: int


def cut_rows(rows: Sequence[int], lengths: Sequence[int], overhead: float) -> list[RowSpan]:
    """Cut strictly increasing active ``rows`` with their ``lengths`` into spans.

    ``overhead`` is the cost of one more span, in token reads (one row's key and value at one position). Greedy: a row
    joins the span before it if that wastes no more than starting a new one.
    """
    spans: list[RowSpan] = []
    start = stop = longest = 0
    for row, length in zip(rows, lengths):
        if stop:
            joined = (row + 1 - start) * max(longest, length)
            if joined <= (stop - start) * longest + length + overhead:
                stop, longest = row + 1, max(longest, length)
                continue
            spans.append(RowSpan(start, stop, longest))
        start, stop, longest = row, row + 1, length
    if stop:
        spans.append(RowSpan(start, stop, longest))
    return spans


SPAN_OVERHEAD_BYTES = 400_000
"""Bytes of keys and values that a core reads in the time that one more span costs (measured: about 30 us)."""

WHOLE = 2
"""Maximum ratio of row length to needed length at which rows are read whole, if products copy non-contiguous
operands: the alternative, the fused kernel, takes 2.1 to 3.7 times as long per token in bfloat16."""


@dataclass(frozen=True)
class _Span:
    """A run of cache rows and its place in the padded batch. ``mask`` ``[n, 1, t]`` is 0 or -inf. ``length`` is t: the
    number of keys of the longest row, or the full row length. ``fuses``: computed by the fused kernel."""

    first_row: int
    at: int
    rows: int
    length: int
    fuses: bool
    mask: Tensor | None


class RowAttention:
    """Attention of ``rows`` int64 ``[D]``, strictly increasing, each with one query over its first ``lengths`` int64
    ``[D]`` keys and values."""

    def __init__(self, cache: RowCache, heads: int, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.cache, self.heads = cache, heads
        self.groups = heads // cache.kv_heads
        self.scale = 1.0 / math.sqrt(cache.head_dim)
        # on a CPU, products in dtypes other than float32 copy non-contiguous operands, such as the first part of rows
        gaps_cost = cache.device.type == "cpu" and cache.dtype != torch.float32
        reach = WHOLE if cache.dtype == torch.bfloat16 and onednn_multiplies_bfloat16() else 0
        self._spans: list[_Span] = []
        self._spread: Tensor | None = None
        per_token = cache.token_bytes / cache.layers
        # on a GPU the launches dominate, so there is one span
        overhead = SPAN_OVERHEAD_BYTES / per_token if cache.device.type == "cpu" else math.inf
        at = 0
        place = np.empty(len(rows), np.int64)
        for span in cut_rows(rows.tolist(), lengths.tolist(), overhead):
            n = span.stop - span.start
            first, last = np.searchsorted(rows, (span.start, span.stop))
            local = rows[first:last] - span.start
            place[first:last] = at + local
            whole = gaps_cost and cache.length <= reach * span.length
            # on a GPU the fused kernel is one launch instead of seven, and keeps scores in float32
            fuses = cache.device.type == "cuda" or (gaps_cost and not whole)
            length = cache.length if whole else span.length
            filled = np.full(n, length)  # idle rows in between compute finite values that are discarded
            filled[local] = lengths[first:last]
            mask = None
            if (filled != length).any():
                hidden = np.arange(length) >= filled[:, None]
                mask = torch.from_numpy(np.where(hidden, -np.inf, 0.0).astype(np.float32))[:, None]
                mask = mask.to(device=cache.device, dtype=cache.dtype if fuses else torch.float32)
                mask = aligned(mask) if cache.device.type == "cuda" else mask
            self._spans.append(_Span(span.start, at, n, length, fuses, mask))
            at += n
        self._padded = at
        if at != len(rows):
            source = np.zeros(at, np.int64)
            source[place] = np.arange(len(rows))
            self._spread = torch.from_numpy(source).to(cache.device)
            self._collect = torch.from_numpy(place).to(cache.device)

    def __call__(self, layer: int, q_DHE: Tensor) -> Tensor:
        q = q_DHE if self._spread is None else q_DHE.index_select(0, self._spread)
        # the query heads that share a key head become the queries of that head
        q_PKGE = q.reshape(self._padded, self.cache.kv_heads, self.groups, self.cache.head_dim)
        out = q_PKGE.new_empty(q_PKGE.shape)  # contiguous, even if the queries are not
        for span in self._spans:
            part = slice(span.at, span.at + span.rows)
            attention_fn = self._fused if span.fuses else self._products
            attention_fn(span, q_PKGE[part], self.cache.keys[layer], self.cache.values[layer], out[part])
        out = out.view(self._padded, self.heads, self.cache.head_dim)
        return out if self._spread is None else out.index_select(0, self._collect)

    def _products(self, span: _Span, q_NKGE: Tensor, keys: Tensor, values: Tensor, out_NKGE: Tensor) -> None:
        kv_heads, length, dim = self.cache.kv_heads, self.cache.length, self.cache.head_dim
        batch, first = span.rows * kv_heads, span.first_row * kv_heads
        # rows and heads are one batch axis of constant stride: no copy
        k = keys.as_strided((batch, dim, span.length), (length * dim, 1, dim), first * length * dim)
        v = values.as_strided((batch, span.length, dim), (length * dim, dim, 1), first * length * dim)
        scores = torch.bmm((q_NKGE * self.scale).flatten(0, 1), k).float()
        if span.mask is not None:
            scores.view(span.rows, self.heads, span.length).add_(span.mask)
        torch.bmm(scores.softmax(-1).to(v.dtype), v, out=out_NKGE.view(batch, self.groups, dim))

    def _fused(self, span: _Span, q_NKGE: Tensor, keys: Tensor, values: Tensor, out_NKGE: Tensor) -> None:
        rows = slice(span.first_row, span.first_row + span.rows)
        k, v = keys[rows, :, : span.length], values[rows, :, : span.length]
        mask = None if span.mask is None else span.mask[:, None]
        out_NKGE.copy_(F.scaled_dot_product_attention(q_NKGE, k, v, attn_mask=mask, scale=self.scale))
