"""Micro-batches under a token budget, and the padded tensors of their forward passes.

Rollouts of one harness begin with the same system message and tool schemas, those of one group with the whole task. In
a causal decoder the states of those tokens depend on nothing after them, so a micro-batch computes a common beginning
once and every row attends to it. The gradient equals that of padded rows: what the rows send back into the shared keys
and values adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.layers import AttentionFn, attend, causal_attend

from .batch import TrainBatch
from .token_sets import TokenSets

WORTH = 0.1
"""Share of a micro-batch's positions that must be spared: attention with a mask is slower than plain causal one."""


def shared_length(tokens_BT: NDArray, predicts_BT: NDArray[np.bool_], routes: NDArray | None) -> int:
    """Number P of leading positions to compute once: equal in all rows (tokens, and experts ``[B, T, L, K]`` where
    they are replayed) and before each row's first position that predicts a weighted token. 0 where it saves little.
    """
    rows, width = tokens_BT.shape
    limit = int(predicts_BT.argmax(1).min())
    same_T = (tokens_BT[:, :limit] == tokens_BT[0, :limit]).all(0)
    if routes is not None:
        same_T &= (routes[:, :limit] == routes[0, :limit]).all((0, 2, 3))
    length = limit if same_T.all() else int(same_T.argmin())
    return length if length * (rows - 1) >= WORTH * rows * width else 0


def shared_prefix_attend(prefix: int, rows: int) -> AttentionFn:
    """Attention over flat ``[N]`` tokens: ``prefix`` shared ones, then ``rows`` continuations of equal (padded) length.

    With a prefix of 0 it is ``causal_attend`` on ``[rows, N / rows]``.
    """
    causal = causal_attend()
    masks: list[Tensor] = []

    def attention_fn(layer: int, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        q_BSHE, k_BSKE, v_BSKE = (x[prefix:].unflatten(0, (rows, -1)) for x in (q_NHE, k_NKE, v_NKE))
        if not prefix:
            return causal(layer, q_BSHE, k_BSKE, v_BSKE).flatten(0, 1)
        head = causal(layer, q_NHE[None, :prefix], k_NKE[None, :prefix], v_NKE[None, :prefix])
        k_BTKE, v_BTKE = (
            torch.cat((x[:prefix].expand(rows, -1, -1, -1), own), 1) for x, own in ((k_NKE, k_BSKE), (v_NKE, v_BSKE))
        )
        if not masks:  # one for all layers
            size = q_BSHE.shape[1]
            masks.append(torch.ones(size, prefix + size, dtype=torch.bool, device=q_NHE.device).tril(prefix))
        tail_BHSE = attend(q_BSHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), masks[0])
        return torch.cat((head[0], tail_BHSE.transpose(1, 2).flatten(0, 1)))

    return attention_fn


@dataclass(frozen=True)
class AllowedSets:
    """``TokenSets`` as tensors: bits uint8 ``[K, W]``, ids int32 ``[M]``, ends int64 ``[J]``."""

    bits: Tensor
    ids: Tensor
    ends: Tensor

    @classmethod
    def on(cls, device: torch.device, sets: TokenSets) -> AllowedSets:
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in vars(sets).values()))

    def mask(self, of_C: Tensor, vocabulary: int) -> Tensor:
        """bool ``[C, vocabulary]``: the set of each number; all tokens where the number is -1."""
        allowed_CV = (of_C < 0)[:, None].expand(-1, vocabulary).clone()
        as_bits = ((of_C >= 0) & (of_C < len(self.bits))).nonzero()[:, 0]
        if len(as_bits):
            ids_V = torch.arange(vocabulary, device=of_C.device)
            inside_V = ids_V < 8 * self.bits.shape[1]
            bytes_RV = self.bits[of_C[as_bits]][:, (ids_V >> 3).clamp(max=self.bits.shape[1] - 1)]
            allowed_CV[as_bits] = ((bytes_RV >> (ids_V & 7)) & 1).bool() & inside_V
        listed = (of_C >= len(self.bits)).nonzero()[:, 0]
        if len(listed):
            set_R = of_C[listed] - len(self.bits)
            begins_J = torch.cat((self.ends.new_zeros(1), self.ends[:-1]))
            sizes_R = self.ends[set_R] - begins_J[set_R]
            rows = listed.repeat_interleave(sizes_R)
            first_of_row = (sizes_R.cumsum(0) - sizes_R).repeat_interleave(sizes_R)
            inside = torch.arange(len(rows), device=of_C.device) - first_of_row
            at = begins_J[set_R].repeat_interleave(sizes_R) + inside
            allowed_CV[rows, self.ids[at].long()] = True
        return allowed_CV


@dataclass
class MicroBatch:
    """B rows padded on the right to T, and the M positions that carry a weight.

    The first P positions of all rows may be the same and are then there once: N = P + B * (T - P) positions, laid out
    as ``shared_prefix`` says. ``tokens_N``, ``positions_N`` int64; ``attention_fn`` knows the layout; ``routes_NLK``
    int64 or None; ``at_M`` int64, index into N of the position *before* each weighted token; ``target_M`` int64, that
    token; ``weights`` float32 ``[M]`` per part; ``behaviour_M``, ``ref_M`` float32 (nan where unknown); ``allowed``
    as in the batch and ``allowed_M`` int64; ``index_M`` is where those tokens are in the batch and
    ``sequence_M`` int64 which sequence of it they belong to. ``real_tokens`` counts positions that are not padding,
    ``spared_tokens`` those of the rows that are not there because they are shared."""

    tokens_N: Tensor
    positions_N: Tensor
    attention_fn: AttentionFn
    routes_NLK: Tensor | None
    at_M: Tensor
    target_M: Tensor
    weights: dict[str, Tensor]
    behaviour_M: Tensor
    ref_M: Tensor | None
    allowed: AllowedSets | None
    allowed_M: Tensor | None
    index_M: NDArray[np.int64]
    sequence_M: Tensor
    real_tokens: int
    spared_tokens: int


def weighted(batch: TrainBatch) -> NDArray[np.bool_]:
    """bool ``[N]``: tokens that some loss part weighs."""
    used = np.zeros(len(batch.tokens), np.bool_)
    for weight in batch.weights.values():
        used |= weight != 0
    return used


def input_lengths(batch: TrainBatch, used_N: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 ``[S]``: tokens of each sequence that the loss depends on as input.

    Attention is causal, so what comes after the last weighted token is cut, and that token itself is only a target.
    """
    starts = batch.offsets[:-1]
    last = np.zeros(len(batch), np.int64)
    index = np.flatnonzero(used_N)
    owner = np.searchsorted(starts, index, side="right") - 1
    np.maximum.at(last, owner, index - starts[owner])
    return last


def collate(
    batch: TrainBatch,
    rows: NDArray[np.int64],
    lengths: NDArray[np.int64],
    used_N: NDArray[np.bool_],
    device: torch.device,
) -> MicroBatch:
    """Pad ``rows`` of a batch; ``lengths`` and ``used_N`` come from ``input_lengths`` and ``weighted``."""
    starts, width = batch.offsets[rows], int(lengths[rows].max())
    time_T = np.arange(width)
    inside_BT = time_T < lengths[rows][:, None]
    source_BT = np.where(inside_BT, starts[:, None] + time_T, 0)
    tokens_BT = np.where(inside_BT, batch.tokens[source_BT], 0).astype(np.int64)
    # Position t of the row holds the hidden state that predicts token t + 1.
    predicts_BT = inside_BT & used_N[np.minimum(source_BT + 1, len(used_N) - 1)]
    routes_BTLK = None
    if batch.routes is not None:
        routes_BTLK = np.where(inside_BT[..., None, None], batch.routes[source_BT], -1).astype(np.int64)
    shared = shared_length(tokens_BT, predicts_BT, routes_BTLK)

    def flat(array: NDArray) -> NDArray:
        """``[B, T, ...]`` -> ``[N, ...]``."""
        tails = array[:, shared:]
        return np.concatenate((array[0, :shared], tails.reshape(-1, *tails.shape[2:])))

    def put(array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    at_M = np.flatnonzero(flat(predicts_BT))
    target_index_M = flat(source_BT)[at_M] + 1
    spared = shared * (len(rows) - 1)
    return MicroBatch(
        put(flat(tokens_BT)),
        put(flat(np.broadcast_to(time_T, tokens_BT.shape))),
        shared_prefix_attend(shared, len(rows)),
        None if routes_BTLK is None else put(flat(routes_BTLK)),
        put(at_M),
        put(batch.tokens[target_index_M].astype(np.int64)),
        {part: put(weight[target_index_M]) for part, weight in batch.weights.items()},
        put(batch.behaviour_logprobs[target_index_M]),
        None if batch.ref_logprobs is None else put(batch.ref_logprobs[target_index_M]),
        None if batch.allowed is None else AllowedSets.on(device, batch.allowed),
        None if batch.allowed_of is None else put(batch.allowed_of[target_index_M].astype(np.int64)),
        target_index_M,
        put(np.searchsorted(batch.offsets, target_index_M, side="right") - 1),
        int(lengths[rows].sum()) - spared,
        spared,
    )


def micro_batches(lengths: Sequence[int] | NDArray, budget: int) -> list[NDArray[np.int64]]:
    """Split rows into groups whose padded size (rows x longest) stays within ``budget`` tokens, longest first.

    Sorting by length keeps padding small. A row longer than the budget gets a group of its own. Every row with a
    length above 0 appears exactly once; rows of length 0 are left out.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    groups: list[NDArray[np.int64]] = []
    at = 0
    while at < len(order):
        rows = max(1, budget // int(lengths[order[at]]))
        groups.append(order[at : at + rows])
        at += rows
    return groups
