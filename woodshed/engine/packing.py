"""Matrices in the layout that oneDNN's kernels read, beside the ones that the decoder has.

For a batch of few tokens MKL first rearranges every matrix, and reading it that once more is most of what a step of
decoding costs where the weights do not fit the processor's caches. oneDNN does so with bfloat16, for batches of any
size. A second copy is arranged once for each version.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.layers import Layer

from .processor import made_by_amd, onednn_multiplies_bfloat16, onednn_offers

WORTH_BYTES = 64 << 20
"""Matrices in float32 that together are smaller stay in a cache, and arranging them costs next to nothing."""

FEWEST, MOST = 3, 256
"""Numbers of tokens for which it pays in float32: one or two are not rearranged by MKL either, and for many it does not
matter. On a processor of AMD it pays for any number."""


def packs(decoder: Decoder) -> bool:
    """Whether a second copy makes this decoder faster, and torch can make one."""
    if decoder.device.type != "cpu" or not onednn_offers("_reorder_linear_weight", "_linear_pointwise"):
        return False
    if decoder.dtype == torch.bfloat16:
        return onednn_multiplies_bfloat16()
    size = sum(weight.numel() * weight.element_size() for weight in _matrices(decoder))
    return decoder.dtype == torch.float32 and size >= WORTH_BYTES


class PackedLinear:
    """``linear`` of a decoder, with copies of its matrices as they were at the last ``refresh``."""

    def __init__(self, decoder: Decoder) -> None:
        self._matrices = _matrices(decoder)
        self._packed: dict[int, Tensor] = {}
        self._pays = range(1, sys.maxsize) if made_by_amd() else range(FEWEST, MOST + 1)
        self.refresh()

    def refresh(self) -> None:
        """The matrices have changed."""
        self._packed.clear()
        for weight in self._matrices:
            self._packed[id(weight)] = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        packed = self._packed.get(id(weight))
        tokens = x.numel() // x.shape[-1]
        if packed is None or (weight.dtype == torch.float32 and tokens not in self._pays):
            return F.linear(x, weight, bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        return out


def _matrices(decoder: Decoder) -> list[Tensor]:
    """What ``Decoder.compute_with`` multiplies with: logits are computed in float32 whatever the dtype."""
    found: list[Tensor] = [decoder.head_weight] if decoder.dtype == torch.float32 else []
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        found += [layer.qkv, layer.out]
        if layer.experts is None:
            found += [layer.gate_up, layer.down]
    return found
