"""CUDA graphs for decoding: the kernels of a step are recorded once per size and then launched together.

A decoding step is hundreds of small kernels, and with few running requests, launching them one by one takes longer than
computing them. A recording has fixed shapes and fixed memory, so a step computes the first rows of the cache, busy or
idle, and reads what differs between steps from one tensor.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Decoder

from .cache import RowCache

Record = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Records a function that computes on fixed memory; returns a function that replays it into the same output tensor."""

LEAST_KEYS = 256
"""Smallest step between recorded lengths, in tokens."""
MOST_IDLE = 4
"""Maximum number of rows that a graph may compute per row of the step; beyond it, the decoder computes the step."""
MOST_SIZES = 128
"""Maximum number of recordings; the oldest is dropped first."""


def why_not(decoder: Decoder, *, drafts: bool) -> str | None:
    """Return the reason why this decoder's steps cannot be recorded, None if they can."""
    if decoder.config.num_experts:
        return "the policy has experts, and how many tokens each of them gets differs from step to step"
    if drafts:
        return "the policy's MTP head drafts and reads every step; set engine.speculate to 'off' or 'ngram'"
    if decoder.device.type != "cuda":
        return f"the engine computes on {decoder.device.type}: graphs need a GPU"
    return None


def record_on_gpu(compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record ``compute`` as a CUDA graph, and return a function that replays it."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # libraries initialise themselves in their first calls, which must not be recorded
            compute()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    # other threads may use the GPU at the same time, for arriving weights
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = compute()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


class DecodeGraphs:
    """Recorded decoding steps of ``decoder`` on ``cache``. Steps are recorded again after the cache was reallocated;
    new weights are written in place and need no new recording. Engine's thread only."""

    def __init__(self, decoder: Decoder, cache: RowCache, record: Record) -> None:
        self.decoder, self.cache, self.record = decoder, cache, record
        self._memory: Tensor | None = None
        self._recorded: dict[tuple[int, int], tuple[Tensor, Callable[[], Tensor]]] = {}

    def decode(self, rows: NDArray[np.int64]) -> Tensor | None:
        """Compute one new token of each of ``rows`` int64 ``[D]`` at ``cache.lengths`` and write its keys and values.
        Returns hidden states ``[D, d_model]``, or None, without doing anything, if most computed rows would be
        idle."""
        cache = self.cache
        count = min(_power_of_two(int(rows.max()) + 1), cache.rows)
        if count > MOST_IDLE * len(rows):
            return None
        positions = cache.lengths[rows]
        now = np.zeros((3, count), np.int64)
        now[0, rows], now[1, rows], now[2, rows] = cache.tokens[rows, positions], positions, 1
        step_3R, replay = self._of_size(count, min(_length(int(positions.max()) + 1), cache.length), now)
        step_3R.copy_(torch.from_numpy(now))
        return replay().index_select(0, torch.from_numpy(rows).to(cache.device))

    def _of_size(self, rows: int, keys: int, now: NDArray[np.int64]) -> tuple[Tensor, Callable[[], Tensor]]:
        if self._memory is not self.cache.keys[0]:
            self._recorded.clear()
            self._memory = self.cache.keys[0]
        found = self._recorded.get((rows, keys))
        if found is None:
            if len(self._recorded) == MOST_SIZES:
                del self._recorded[next(iter(self._recorded))]
            step_3R = torch.from_numpy(now).to(self.cache.device, copy=True)
            replay = self.record(lambda: self._compute(step_3R, keys))
            found = self._recorded[rows, keys] = step_3R, replay
        return found

    def _compute(self, step_3R: Tensor, keys: int) -> Tensor:
        """Hidden states ``[R, d_model]`` of the first R rows. ``step_3R``: token, position, and whether the row is
        active; the cache of an inactive row is not changed."""
        cache = self.cache
        tokens_R, positions_R, active_R = step_3R.unbind()
        count = len(tokens_R)
        heads_RK = torch.arange(count * cache.kv_heads, device=cache.device).view(count, -1) * cache.length
        slots = (heads_RK + positions_R[:, None]).flatten()
        writes = active_R.bool()[:, None].expand(-1, cache.kv_heads).reshape(-1, 1)
        later_R11T = (torch.arange(keys, device=cache.device) > positions_R[:, None])[:, None, None]
        mask_R11T = torch.zeros(later_R11T.shape, dtype=cache.dtype, device=cache.device)
        mask_R11T = mask_R11T.masked_fill(later_R11T, -torch.inf)

        def attention_fn(layer: int, q_RHE: Tensor, k_RKE: Tensor, v_RKE: Tensor) -> Tensor:
            for buffer, new in ((cache.keys[layer], k_RKE), (cache.values[layer], v_RKE)):
                flat = buffer.view(-1, cache.head_dim)
                new = torch.where(writes, new.reshape(-1, cache.head_dim), flat.index_select(0, slots))
                flat.index_copy_(0, slots, new)
            # the query heads that share a key head become the queries of that head
            q_RKGE = q_RHE.reshape(count, cache.kv_heads, -1, cache.head_dim)
            k_RKTE, v_RKTE = cache.keys[layer][:count, :, :keys], cache.values[layer][:count, :, :keys]
            return F.scaled_dot_product_attention(q_RKGE, k_RKTE, v_RKTE, attn_mask=mask_R11T).reshape(q_RHE.shape)

        return self.decoder.forward(tokens_R, positions_R, attention_fn)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _length(count: int) -> int:
    """``count`` rounded up to one of four lengths between two powers of two: at most a quarter is wasted."""
    step = max(LEAST_KEYS, _power_of_two(count) // 8)
    return -(-count // step) * step
