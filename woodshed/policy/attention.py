"""Causal attention by torch: of padded batches, and of sequences in one flat batch without padding.

The flat batch ``[N]`` holds the beginning that all sequences share, once, then what follows it of each sequence. Where
they share nothing it holds the sequences. ``native/ragged.h`` computes the same on a CPU without padding.

Axis names: N positions, M of them with a query, B sequences, T time, H query heads, K key/value heads, E head width.
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


@dataclass(frozen=True, eq=False)
class Ragged:
    """Layout of a flat batch, and causal attention over it.

    ``shared``: length of the common beginning. ``lengths``: lengths of the sequences without it, each at least 1.
    ``ends_M``: int64, ascending, the positions whose queries the last layer computes; on the device of the batch.
    """

    shared: int
    lengths: Sequence[int]
    ends_M: Tensor

    @cached_property
    def starts(self) -> Tensor:
        """Positions at which the R pieces of the batch begin, then N: int64 ``[R + 1]`` on the CPU. The common
        beginning, if there is one, is the first piece."""
        pieces = [self.shared, *self.lengths] if self.shared else [*self.lengths]
        return torch.tensor([0, *pieces]).cumsum(0)

    @cached_property
    def end_counts(self) -> Tensor:
        """Number of ``ends_M`` before each of ``starts``: int64 ``[R + 1]`` on the CPU."""
        return torch.searchsorted(self.ends_M.cpu(), self.starts)

    @property
    def size(self) -> int:
        """Number of positions N."""
        return self.shared + sum(self.lengths)

    @cached_property
    def _places(self) -> Tensor:
        """Index of each position behind the beginning among sequences padded to the longest: int64 ``[N - shared]``."""
        lengths = torch.tensor(self.lengths)
        width = int(lengths.max())
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        begins = (lengths.cumsum(0) - lengths).repeat_interleave(lengths)
        return (rows * width + torch.arange(len(rows)) - begins).to(self.ends_M.device)

    @cached_property
    def _mask(self) -> Tensor:
        """Keys that each query of a padded sequence sees: bool ``[S, shared + S]``."""
        size = max(self.lengths)
        return torch.ones(size, self.shared + size, dtype=torch.bool, device=self.ends_M.device).tril(self.shared)

    def attend(self, q: Tensor, k_NKE: Tensor, v_NKE: Tensor) -> Tensor:
        """Return attention, computed by torch, in the shape of ``q``: queries of all positions ``[N, H, E]`` or of
        ``ends_M`` only ``[M, H, E]``."""
        if len(q) != self.size:
            q_NHE = q.new_zeros(self.size, *q.shape[1:]).index_copy(0, self.ends_M, q)
            return self.attend(q_NHE, k_NKE, v_NKE).index_select(0, self.ends_M)
        causal, first = causal_attend(), self.shared
        q_BSHE, k_BSKE, v_BSKE = (self._padded(x[first:]) for x in (q, k_NKE, v_NKE))
        if not first:
            return causal(0, q_BSHE, k_BSKE, v_BSKE).flatten(0, 1).index_select(0, self._places)
        head = causal(0, q[None, :first], k_NKE[None, :first], v_NKE[None, :first])
        k_BTKE, v_BTKE = (
            torch.cat((x[:first].expand(len(self.lengths), -1, -1, -1), own), 1)
            for x, own in ((k_NKE, k_BSKE), (v_NKE, v_BSKE))
        )
        tail_BHSE = attend(q_BSHE.transpose(1, 2), k_BTKE.transpose(1, 2), v_BTKE.transpose(1, 2), self._mask)
        return torch.cat((head[0], tail_BHSE.transpose(1, 2).flatten(0, 1).index_select(0, self._places)))

    def _padded(self, x: Tensor) -> Tensor:
        """Pad ``[N - shared, ...]`` with zeros to ``[B, S, ...]``."""
        rows, size = len(self.lengths), max(self.lengths)
        return x.new_zeros(rows * size, *x.shape[1:]).index_copy(0, self._places, x).unflatten(0, (rows, size))
