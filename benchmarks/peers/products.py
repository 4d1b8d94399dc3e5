"""What nobody can do without: the matrix products of a load, and nothing else."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F

from peers.policies import Load
from woodshed.engine.packing import PackedLinear
from woodshed.policy.decoder import Decoder
from woodshed.policy.layers import Layer, Linear
from woodshed.policy.processor import onednn_offers

ROWS = 512


def product_seconds(decoder: Decoder, load: Load) -> float:
    """Seconds for the products of ``load``'s prompts all at once, with the best kernels that torch offers: prompts in
    pieces of 512 tokens, logits where something is sampled. An engine with these kernels takes that long at least."""
    linear = PackedLinear(decoder) if onednn_offers("_reorder_linear_weight", "_linear_pointwise") else F.linear
    prefill, steps = load.concurrent * load.prompt, load.output - 1
    began = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, prefill, ROWS):
            _through(decoder, linear, min(ROWS, prefill - start), sampling=False)
        for _ in range(steps):
            _through(decoder, linear, load.concurrent, sampling=True)
        hidden = torch.ones(load.concurrent, decoder.config.d_model, dtype=decoder.dtype)
        for _ in range(steps + 1):
            if decoder.dtype == torch.float32:
                linear(hidden, decoder.head_weight, None)
            else:
                decoder.logits(hidden)
    return time.perf_counter() - began


def _through(decoder: Decoder, linear: Linear, rows: int, *, sampling: bool) -> None:
    """The products of a step; of a prompt the last layer's keys and values are all that is needed."""
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer) and layer.experts is None
        weights = [layer.qkv, layer.out, layer.gate_up, layer.down]
        for weight in weights if sampling or index < len(decoder.layers) - 1 else weights[:1]:
            linear(torch.ones(rows, weight.shape[1], dtype=weight.dtype), weight, None)
