"""Copies of the decoder's matrices, packed in the layout that oneDNN's kernels read.

For a batch of few tokens MKL packs every matrix at every call, and reading it once more is most of the cost of a
decoding step if the weights do not fit the processor's caches. oneDNN does the same with bfloat16, for batches of any
size. These copies are packed once per policy version.
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.layers import Layer
from woodshed.policy.processor import made_by_amd, onednn_multiplies_bfloat16, onednn_offers

WORTH_BYTES = 64 << 20
"""Float32 matrices that are smaller in total stay in the processor's cache, where packing costs almost nothing."""

FEWEST, MOST = 3, 256
"""Range of token counts for which packed float32 matrices pay: for one or two tokens MKL does not pack either, and for
more than 256 packing does not matter. On AMD processors they pay for any count."""


def packs(decoder: Decoder) -> bool:
    """Return True if torch supports packed copies and they make this decoder faster."""
    if decoder.device.type != "cpu" or not onednn_offers("_reorder_linear_weight", "_linear_pointwise"):
        return False
    if decoder.dtype == torch.bfloat16:
        return onednn_multiplies_bfloat16()
    size = sum(weight.numel() * weight.element_size() for weight in _matrices(decoder))
    return decoder.dtype == torch.float32 and size >= WORTH_BYTES


class PackedLinear:
    """The linear operator of a decoder, with packed copies of its matrices made by ``refresh``."""

    def __init__(self, decoder: Decoder) -> None:
        self._matrices = _matrices(decoder)
        self._packed: dict[int, Tensor] = {}
        self._pays = range(1, sys.maxsize) if made_by_amd() else range(FEWEST, MOST + 1)
        self.refresh()

    def refresh(self) -> None:
        """Pack the matrices again, after they changed."""
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
    """Return the matrices that the operator of ``Decoder.compute_with`` multiplies by. They include the output head
    only in float32, because logits are accumulated in float32 for every dtype."""
    found: list[Tensor] = [decoder.head_weight] if decoder.dtype == torch.float32 else []
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        found += [layer.qkv, layer.out]
        if layer.experts is None:
            found += [layer.gate_up, layer.down]
    return found
