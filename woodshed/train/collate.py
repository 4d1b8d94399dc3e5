"""The tensors of a micro-batch's forward pass.

Rows that begin alike are computed once up to where they part (``forest.py``), whether tokens of the beginning are
trained or not; what follows attends to it. The gradient equals that of separate rows: the gradients of all rows add up
in the shared keys and values, and those of all targets of a position in its hidden state. Nothing is padded, and the
last layer computes only positions that predict a weighted token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.attention import AttentionFn, Ragged
from woodshed.policy.decoder import Decoder

from .batch import TrainBatch
from .forest import pieces, sort_rows
from .token_sets import TokenSets


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
    """B rows in N positions, and the M tokens that carry a weight, row by row.

    ``layout`` says where the rows lie; its ``ends`` are the positions *before* the weighted tokens, each once, and
    ``of_M`` int64 says which of them each token follows (None: one after the other). ``tokens_N``, ``positions_N``
    int64; ``routes_NLK`` int64 or None; ``target_M`` int64, the weighted tokens; ``weights`` float32 ``[M]`` per part;
    ``behaviour_M``, ``ref_M`` float32 (nan where unknown); ``allowed`` as in the batch and ``allowed_M`` int64;
    ``index_M`` is where the weighted tokens are in the batch and ``sequence_M`` int64 which sequence of it they belong
    to. ``spared_tokens`` counts the positions of rows that are left out because they are shared.
    """

    tokens_N: Tensor
    positions_N: Tensor
    layout: Ragged
    of_M: Tensor | None
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

    @property
    def before_M(self) -> Tensor:
        """Positions before the weighted tokens."""
        return self.layout.ends if self.of_M is None else self.layout.ends.index_select(0, self.of_M)

    def attention_fn(self, decoder: Decoder) -> AttentionFn:
        """Return causal attention over these rows, computed by the decoder's operators."""
        attention = decoder.operators.attention
        return lambda layer, q, k, v: attention(self.layout, q, k, v)

    def hidden(self, decoder: Decoder) -> Tensor:
        """Return the hidden states ``[M, D]`` that predict the weighted tokens."""
        attention_fn, ends_U = self.attention_fn(decoder), self.layout.ends
        hidden_UD = decoder.forward(self.tokens_N, self.positions_N, attention_fn, routes=self.routes_NLK, ends=ends_U)
        return hidden_UD if self.of_M is None else hidden_UD.index_select(0, self.of_M)


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
    # Position t of the row holds the hidden state that predicts token t + 1.
    predicts_BT = inside_BT & used_N[np.minimum(source_BT + 1, len(used_N) - 1)]
    found = sort_rows(batch, rows, lengths)
    forest = list(pieces(found))
    place_BT, size = np.zeros_like(source_BT), 0
    for piece in forest:
        end = size + piece.stop - piece.start
        place_BT[found.order[piece.first : piece.end], piece.start : piece.stop] = np.arange(size, end)
        size = end
    source_N = np.concatenate([source_BT[found.order[piece.first], piece.start : piece.stop] for piece in forest])
    positions_N = np.concatenate([time_T[piece.start : piece.stop] for piece in forest])
    target_index_M = source_BT[predicts_BT] + 1
    ends_U, of_M = np.unique(place_BT[predicts_BT], return_inverse=True)

    def put(array: NDArray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    layout = Ragged(
        lengths=[piece.stop - piece.start for piece in forest],
        parents=[piece.parent for piece in forest],
        ends=put(ends_U),
    )
    return MicroBatch(
        tokens_N=put(batch.tokens[source_N].astype(np.int64)),
        positions_N=put(positions_N),
        layout=layout,
        of_M=None if np.array_equal(of_M, np.arange(len(ends_U))) else put(of_M),
        routes_NLK=None if batch.routes is None else put(batch.routes[source_N].astype(np.int64)),
        target_M=put(batch.tokens[target_index_M].astype(np.int64)),
        weights={part: put(weight[target_index_M]) for part, weight in batch.weights.items()},
        behaviour_M=put(batch.behaviour_logprobs[target_index_M]),
        ref_M=None if batch.ref_logprobs is None else put(batch.ref_logprobs[target_index_M]),
        allowed=None if batch.allowed is None else AllowedSets.on(device, batch.allowed),
        allowed_M=None if batch.allowed_of is None else put(batch.allowed_of[target_index_M].astype(np.int64)),
        index_M=target_index_M,
        sequence_M=put(np.searchsorted(batch.offsets, target_index_M, side="right") - 1),
        spared_tokens=int(lengths[rows].sum()) - size,
    )
