"""Attention of one iteration over the key/value cache: the ``attention_fn`` that the engine passes to the decoder.

The flat batch ``[N]`` holds first one token for every decoding row, in order of rows, then chunks of prompts. Decoding
rows are computed together (see ``row_attention``), chunks one by one. The last layer is computed only for positions at
which a token is sampled; for the others it computes only keys and values, since nothing else is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.attention import aligned, attend

from .cache import RowCache
from .row_attention import RowAttention

LONG_CHUNK = 64
"""Minimum length of chunks whose keys and values are copied as one block. This takes half the time of copying token by
token at this length, a quarter at 512."""


@dataclass(frozen=True)
class Chunk:
    """Tokens ``[start, start + count)`` of a row's sequence."""

    row: int
    start: int
    count: int


def places(
    cache: RowCache, decode_rows: NDArray[np.int64], chunks: list[Chunk]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cache rows and positions of a step's tokens, int64 ``[N]`` each."""
    rows = [decode_rows, *(np.full(c.count, c.row) for c in chunks)]
    positions = [cache.lengths[decode_rows], *(np.arange(c.start, c.start + c.count) for c in chunks)]
    return np.concatenate(rows).astype(np.int64), np.concatenate(positions).astype(np.int64)


class CausalMasks:
    """Causal masks for chunks at any start position, cut from one table (on a CPU as views)."""

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
        mask = self._table[:count, self._past - start : self._past + count]
        return aligned(mask) if self.device.type == "cuda" else mask


class StepAttention:
    """Attention of one iteration. ``decode_rows`` int64 ``[D]`` strictly increasing; each has one new token at position
    ``cache.lengths[row]``. Writes the keys and values of all new tokens, then computes causal attention within each
    row: for all new tokens, or only for those given to ``only``.
    """

    def __init__(
        self, cache: RowCache, heads: int, decode_rows: NDArray[np.int64], chunks: list[Chunk], masks: CausalMasks
    ) -> None:
        self.cache, self.heads, self.chunks = cache, heads, chunks
        self.decoding = len(decode_rows)
        self.rows, self.positions = places(cache, decode_rows, chunks)
        heads_K = np.arange(cache.kv_heads) * cache.length
        slots_NK = (self.rows * (cache.kv_heads * cache.length) + self.positions)[:, None] + heads_K
        self._long: list[tuple[int, Chunk]] = []
        self._scattered: list[tuple[int, int, Tensor]] = []
        start, at = 0, self.decoding
        for chunk in chunks:
            if chunk.count >= LONG_CHUNK:
                self._scatter(start, at, slots_NK)
                self._long.append((at, chunk))
                start = at + chunk.count
            at += chunk.count
        self._scatter(start, at, slots_NK)
        self._causal = [masks.get(c.start, c.count) for c in chunks]
        self._decode = RowAttention(cache, heads, decode_rows, cache.lengths[decode_rows] + 1)
        self._ends: RowAttention | None = None

    def _scatter(self, start: int, stop: int, slots_NK: NDArray[np.int64]) -> None:
        """Register tokens ``[start, stop)`` of the step, whose keys and values are written token by token."""
        if stop > start:
            slots = torch.from_numpy(slots_NK[start:stop].reshape(-1)).to(self.cache.device)
            self._scattered.append((start, stop, slots))

    def only(self, ends: NDArray[np.int64]) -> None:
        """Announce that the last layer has only the queries of tokens ``ends``: int64 ``[M]`` with M < N, in order of
        their rows, at most one per row."""
        self._ends = RowAttention(self.cache, self.heads, self.rows[ends], self.positions[ends] + 1)

    def write(self, layer: int, k_NKE: Tensor, v_NKE: Tensor) -> None:
        """Write keys and values of the step's tokens to the cache."""
        for buffer, new in ((self.cache.keys[layer], k_NKE), (self.cache.values[layer], v_NKE)):
            for start, stop, slots in self._scattered:
                flat = new[start:stop].reshape(-1, new.shape[-1])
                buffer.view(-1, buffer.shape[-1]).index_copy_(0, slots, flat)
            for at, c in self._long:
                buffer[c.row, :, c.start : c.start + c.count].copy_(new[at : at + c.count].transpose(0, 1))

    def __call__(self, layer: int, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        self.write(layer, k_NKE, v_NKE)
        if self._ends is not None and len(q_NHE) < len(self.rows):
            return self._ends(layer, q_NHE)
        if not self.chunks:
            return self._decode(layer, q_NHE)
        parts = [self._decode(layer, q_NHE[: self.decoding])] if self.decoding else []
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        at = self.decoding
        for chunk, mask in zip(self.chunks, self._causal):
            end = chunk.start + chunk.count
            q, k, v = q_NHE[at : at + chunk.count], keys[chunk.row, :, :end], values[chunk.row, :, :end]
            parts.append(_attend_chunk(q, k, v, mask))
            at += chunk.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_chunk(q_CHE: Tensor, k_KTE: Tensor, v_KTE: Tensor, mask_CT: Tensor) -> Tensor:
    """Attention of the queries of the last C of T positions."""
    whole = len(q_CHE) == k_KTE.shape[1]
    out = attend(q_CHE.transpose(0, 1)[None], k_KTE[None], v_KTE[None], None if whole else mask_CT)
    return out[0].transpose(0, 1)
