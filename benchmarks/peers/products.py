"""What nobody can do without: the matrix products of a load, and nothing else."""

from __future__ import annotations

import time

import torch

from peers.policies import Load
from woodshed.policy.decoder import Decoder
from woodshed.policy.layers import Layer

ROWS = 512


def product_seconds(decoder: Decoder, load: Load) -> float:
    """Seconds for the products of ``load``'s prompts all at once, with the decoder's own ``linear``: prompts in pieces
    of 512 tokens, logits where something is sampled. An engine with these kernels takes that long at least."""
    prefill, steps = load.concurrent * load.prompt, load.output - 1
    began = time.perf_counter()
    with torch.inference_mode():
        for start in range(0, prefill, ROWS):
            _through(decoder, min(ROWS, prefill - start), sampling=False)
        for _ in range(steps):
            _through(decoder, load.concurrent, sampling=True)
        for _ in range(steps + 1):
            decoder.logits(torch.ones(load.concurrent, decoder.config.d_model, dtype=decoder.dtype))
    return time.perf_counter() - began


def _through(decoder: Decoder, rows: int, *, sampling: bool) -> None:
    """The products of a step; of a prompt the last layer's keys and values are all that is needed."""
    for index, layer in enumerate(decoder.layers):
        assert isinstance(layer, Layer) and layer.experts is None
        weights = [layer.qkv, layer.out, layer.gate_up, layer.down]
        for weight in weights if sampling or index < len(decoder.layers) - 1 else weights[:1]:
            layer.linear(torch.ones(rows, weight.shape[1], dtype=weight.dtype), weight, None)
