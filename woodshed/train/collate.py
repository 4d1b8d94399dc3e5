"""Micro-batches under a token budget, and the tensors of their forward passes.

Rollouts of one harness begin with the same system message and tool schemas, those of one group with the same task. In
a causal decoder the states of these tokens do not depend on later tokens, so a micro-batch computes a common prefix
once and every row attends to it. The gradient equals that of separate rows: the gradients of all rows add up in the
shared keys and values. Nothing is padded, and the last layer computes only positions that predict a weighted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.attention import AttentionFn, Ragged
from woodshed.policy.decoder import Decoder

from .batch import TrainBatch
from .token_sets import TokenSets

WORTH = 0.1
"""Minimum share of a micro-batch's positions that a shared prefix must save: attention with a mask is slower than
plain causal attention."""


def shared_length(tokens_BT: NDArray, predicts_BT: NDArray[np.bool_], routes: NDArray | None) -> int:
    """Return the number P of leading positions to compute once, 0 if that saves too little (``WORTH``).

    They are equal in all rows of ``tokens_BT`` and ``routes`` ``[B, T, L, K]`` (replayed experts, or None) and come
    before each row's first position that predicts a weighted token (``predicts_BT``).
    """
    rows, width = tokens_BT.shape
    limit = int(predicts_BT.argmax(1).min())
    same_T = (tokens_BT[:, :limit] == tokens_BT[0, :limit]).all(0)
    if routes is not None:
        same_T &= (routes[:, :limit] == routes[0, :limit]).all((0, 2, 3))
    length = limit if same_T.all() else int(same_T.argmin())
    return length if length * (rows - 1) >= WORTH * rows * width else 0


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
        """Return bool ``[C, vocabulary]``: the tokens of the set with each number in ``of_C``; all tokens for -1."""
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
    """B rows in N positions, and the M tokens that carry a weight.

    ``layout`` says where the rows lie; its ``ends_M`` are the positions *before* the weighted tokens. ``tokens_N``,
    ``positions_N`` int64; ``routes_NLK`` int64 or None; ``target_M`` int64, the weighted tokens; ``weights`` float32
    ``[M]`` per part; ``behaviour_M``, ``ref_M`` float32 (nan where unknown); ``allowed`` as in the batch and
    ``allowed_M`` int64; ``index_M`` is where the weighted tokens are in the batch and ``sequence_M`` int64 which
    sequence of it they belong to. ``spared_tokens`` counts the positions of rows that are left out because they are
    shared.
    """

    tokens_N: Tensor
    positions_N: Tensor
    layout: Ragged
    routes_NLK: Tensor | None
    target_M: Tensor
    weights: dict[str, Tensor]
    behaviour_M: Tensor
    ref_M: Tensor | None
    allowed: AllowedSets | None
    allowed_M: Tensor | None
    index_M: NDArray[np.int64]
    sequence_M: Tensor
    spared_tokens: int

    def attention_fn(self, decoder: Decoder) -> AttentionFn:
        """Return causal attention over these rows, computed by the decoder's operators."""
        attention = decoder.operators.attention
        return lambda layer, q, k, v: attention(self.layout, q, k, v)

    def hidden(self, decoder: Decoder) -> Tensor:
        """Return the hidden states ``[M, D]`` that predict the weighted tokens."""
        attention_fn, ends_M = self.attention_fn(decoder), self.layout.ends_M
        return decoder.forward(self.tokens_N, self.positions_N, attention_fn, routes=self.routes_NLK, ends=ends_M)


def weighted(batch: TrainBatch) -> NDArray[np.bool_]:
    """Return bool ``[N]``: True for tokens with a weight other than 0 in some loss part."""
    used = np.zeros(len(batch.tokens), np.bool_)
    for weight in batch.weights.values():
        used |= weight != 0
    return used


def input_lengths(batch: TrainBatch, used_N: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return int64 ``[S]``: number of tokens of each sequence that the forward pass needs as input.

    Attention is causal, so tokens after the last weighted one are cut; the last weighted token itself is only a target.
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
    """Build the micro-batch of the sequences ``rows`` (indices) of a batch. ``lengths`` and ``used_N`` come from
    ``input_lengths`` and ``weighted``."""
    starts, width = batch.offsets[rows], int(lengths[rows].max())
    time_T = np.arange(width)
    inside_BT = time_T < lengths[rows][:, None]
    source_BT = np.where(inside_BT, starts[:, None] + time_T, 0)
    tokens_BT = np.where(inside_BT, batch.tokens[source_BT], 0)
    # Position t of the row holds the hidden state that predicts token t + 1.
    predicts_BT = inside_BT & used_N[np.minimum(source_BT + 1, len(used_N) - 1)]
    routes_BTLK = None
    if batch.routes is not None:
        routes_BTLK = np.where(inside_BT[..., None, None], batch.routes[source_BT], -1)
    shared = shared_length(tokens_BT, predicts_BT, routes_BTLK)
    there_BT = inside_BT.copy()
    there_BT[1:, :shared] = False
    # The shared beginning, then the rest of each row.
    source_N = np.concatenate((source_BT[0, :shared], source_BT[:, shared:][there_BT[:, shared:]]))
    positions_N = np.concatenate((time_T[:shared], np.nonzero(there_BT[:, shared:])[1] + shared))

    def put(array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    ends_M = np.flatnonzero(used_N[np.minimum(source_N + 1, len(used_N) - 1)])
    target_index_M = source_N[ends_M] + 1
    return MicroBatch(
        put(batch.tokens[source_N].astype(np.int64)),
        put(positions_N),
        Ragged(shared, (lengths[rows] - shared).tolist(), put(ends_M)),
        None if batch.routes is None else put(batch.routes[source_N].astype(np.int64)),
        put(batch.tokens[target_index_M].astype(np.int64)),
        {part: put(weight[target_index_M]) for part, weight in batch.weights.items()},
        put(batch.behaviour_logprobs[target_index_M]),
        None if batch.ref_logprobs is None else put(batch.ref_logprobs[target_index_M]),
        None if batch.allowed is None else AllowedSets.on(device, batch.allowed),
        None if batch.allowed_of is None else put(batch.allowed_of[target_index_M].astype(np.int64)),
        target_index_M,
        put(np.searchsorted(batch.offsets, target_index_M, side="right") - 1),
        shared * (len(rows) - 1),
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
