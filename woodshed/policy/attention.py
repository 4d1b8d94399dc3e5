"""Causal attention by torch: of padded batches, and of sequences in one flat batch without padding.

The flat batch ``[N]`` consists of pieces. What several sequences begin with is one piece, followed somewhere by the
pieces that continue it; a sequence that shares nothing is one piece. ``native/ragged.h`` computes the same on a CPU
without padding.

Axis names: N positions, M of them with a query, B pieces or sequences, S length of the longest piece, C length of what
a piece continues, T time, H query heads, K key/value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

AttentionFn = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attention_fn(layer, q [..., H, Dh], k [..., Hkv, Dh], v [..., Hkv, Dh]) -> [..., H, Dh]``."""


def attend(q_BHTE: Tensor, k_BKTE: Tensor, v_BKTE: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of H query heads over K key/value heads, ``[B, H, T, Dh]``; causal without a ``mask``.

    On a GPU only the flash kernel takes fewer key heads than query heads, and it takes neither masks nor float32.
    Otherwise torch would store the scores of all pairs, so key heads are repeated for the memory-efficient kernel.
    """
    groups = q_BHTE.shape[1] // k_BKTE.shape[1]
    flash = mask is None and (q_BHTE.dtype != torch.float32 or torch.is_autocast_enabled("cuda"))
    if groups > 1 and q_BHTE.is_cuda and not flash:
        k_BKTE, v_BKTE = k_BKTE.repeat_interleave(groups, 1), v_BKTE.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(
        q_BHTE,
        k_BKTE,
        v_BKTE,
        attn_mask=mask,
        is_causal=mask is None,
        enable_gqa=q_BHTE.shape[1] != k_BKTE.shape[1],
    )


def aligned(mask: Tensor) -> Tensor:
    """Return a copy of a float ``mask`` whose rows begin at multiples of 16 elements, with 0 in between.

    The fused kernel of GPUs reads masks in words of 16 bytes. torch copies a mask for it in every layer where the
    strides do not allow that, and does not look at where the mask begins.
    """
    wide = mask.new_zeros((*mask.shape[:-1], -(-mask.shape[-1] // 16) * 16))
    wide[..., : mask.shape[-1]] = mask
    return wide[..., : mask.shape[-1]]


def causal_attend() -> AttentionFn:
    """Return causal attention for ``[B, T]`` batches padded on the right, each row one sequence from position 0."""

    def attention_fn(layer: int, q_BTHE: Tensor, k_BTKE: Tensor, v_BTKE: Tensor) -> Tensor:
        return attend(q_BTHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), None).transpose(1, 2)

    return attention_fn


@dataclass(frozen=True)
class _Siblings:
    """B pieces that continue the same piece (or none), padded to the longest; tensors on the device of the batch.

    ``context`` int64 ``[C]``: positions of what they continue, from the start of the sequence. ``own`` int64: their
    positions, one piece after the other. ``places`` int64: where these are in ``[B * S]``. ``mask`` bool
    ``[S, C + S]``: keys that each query sees; None if C is 0.
    """

    context: Tensor
    own: Tensor
    places: Tensor
    count: int
    size: int
    mask: Tensor | None

    def attend(self, q_NHE: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        """Return attention of the queries at ``own``, in this order."""
        q_BHSE, k_BKSE, v_BKSE = (self._padded(x) for x in (q_NHE, k_NKE, v_NKE))
        if self.mask is not None:
            k_BKSE, v_BKSE = (
                torch.cat((x.index_select(0, self.context).transpose(0, 1).expand(self.count, -1, -1, -1), own), 2)
                for x, own in ((k_NKE, k_BKSE), (v_NKE, v_BKSE))
            )
        out_BHSE = attend(q_BHSE, k_BKSE, v_BKSE, self.mask)
        return out_BHSE.transpose(1, 2).flatten(0, 1).index_select(0, self.places)

    def _padded(self, x: Tensor) -> Tensor:
        """Return ``[N, H, E]`` at ``own``, padded with zeros to ``[B, H, S, E]``."""
        flat = x.new_zeros(self.count * self.size, *x.shape[1:]).index_copy(0, self.places, x.index_select(0, self.own))
        return flat.unflatten(0, (self.count, self.size)).transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Ragged:
    """Layout of a flat batch, and causal attention over it.

    ``lengths``: lengths of the R pieces, one after the other, each at least 1. ``parents``: number of the piece that
    each piece continues, smaller than its own; -1 where a sequence starts. ``ends``: int64 ``[M]``, ascending, the
    positions whose queries the last layer computes; on the device of the batch.
    """

    lengths: Sequence[int]
    parents: Sequence[int]
    ends: Tensor

    @cached_property
    def starts(self) -> Tensor:
        """Positions at which the pieces begin, then N: int64 ``[R + 1]`` on the CPU."""
        return torch.tensor([0, *self.lengths]).cumsum(0)

    @cached_property
    def end_counts(self) -> Tensor:
        """Number of ``ends`` before each of ``starts``: int64 ``[R + 1]`` on the CPU."""
        return torch.searchsorted(self.ends.cpu(), self.starts)

    @cached_property
    def contexts(self) -> list[Tensor]:
        """Positions of what each piece continues, from the start of its sequence: int64, on the CPU."""
        found: list[Tensor] = []
        for parent in self.parents:
            before = torch.cat((found[parent], self._own(parent))) if parent >= 0 else torch.zeros(0, dtype=torch.int64)
            found.append(before)
        return found

    @cached_property
    def gathered(self) -> tuple[Tensor, Tensor]:
        """``contexts`` one after the other, with the index at which each begins (int64 ``[R + 1]``) before them."""
        begins = torch.tensor([0, *map(len, self.contexts)]).cumsum(0)
        return begins, torch.cat(self.contexts)

    @property
    def size(self) -> int:
        """Number of positions N."""
        return sum(self.lengths)

    def _own(self, piece: int) -> Tensor:
        return torch.arange(int(self.starts[piece]), int(self.starts[piece + 1]))

    @cached_property
    def _siblings(self) -> list[_Siblings]:
        found, device = [], self.ends.device
        for parent in sorted(set(self.parents)):
            group = [piece for piece, other in enumerate(self.parents) if other == parent]
            context, size = self.contexts[group[0]].to(device), max(self.lengths[piece] for piece in group)
            mask = None
            if parent >= 0:
                mask = torch.ones(size, len(context) + size, dtype=torch.bool, device=device).tril(len(context))
            own = torch.cat([self._own(piece) for piece in group]).to(device)
            places = torch.cat([at * size + torch.arange(self.lengths[piece]) for at, piece in enumerate(group)])
            found.append(_Siblings(context, own, places.to(device), len(group), size, mask))
        return found

    @cached_property
    def _order(self) -> Tensor:
        """Index of each position among those of ``_siblings``: int64 ``[N]``."""
        return torch.cat([siblings.own for siblings in self._siblings]).argsort()

    def attend(self, q: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        """Return attention, computed by torch, in the shape of ``q``: queries of all positions ``[N, H, E]`` or of
        ``ends`` only ``[M, H, E]``."""
        if len(q) != self.size:
            q_NHE = q.new_zeros(self.size, *q.shape[1:]).index_copy(0, self.ends, q)
            return self.attend(q_NHE, k_NKE, v_NKE).index_select(0, self.ends)
        parts = [siblings.attend(q, k_NKE, v_NKE) for siblings in self._siblings]
        return parts[0] if len(parts) == 1 else torch.cat(parts).index_select(0, self._order)
