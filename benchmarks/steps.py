"""Single steps of the engine by its own kernels and by torch's operators: ``python benchmarks/steps.py``.

For every size of policy and number format: 1, 8 and 32 rows that decode at a context of 540 tokens, and a prompt of
512, turn and turn about on the same cache, one thread. Milliseconds are medians; figures are the worst and best ratio.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from peers.policies import open_decoder
from result import write_result

from woodshed.engine.attention import CausalMasks, Chunk, StepAttention, places
from woodshed.engine.cache import RowCache
from woodshed.engine.native.kernels import Kernels
from woodshed.engine.packing import PackedLinear, packs
from woodshed.policy.decoder import Decoder

ROWS, LENGTH, CONTEXT, PROMPT = 32, 640, 540, 512


def filled_cache(decoder: Decoder) -> RowCache:
    c = decoder.config
    cache = RowCache(
        layers=c.num_layers, kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=decoder.dtype,
        device=torch.device("cpu"), budget=4 << 30, max_rows=ROWS, step=LENGTH,
    )  # fmt: skip
    for _ in range(ROWS):
        cache.acquire(None, LENGTH)
    for buffer in (*cache.keys, *cache.values):
        buffer.normal_()
    cache.tokens[:] = np.random.default_rng(0).integers(c.vocab_size, size=cache.tokens.shape)
    return cache


def median_ms(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Of each, in turns; the first round only warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: round(1000 * statistics.median(taken[1:]), 2) for name, taken in seconds.items()}


def measure(size: str, dtype: torch.dtype, rounds: int) -> dict[str, dict[str, float]]:
    decoder = open_decoder(size).to(dtype).requires_grad_(False)
    kernels = Kernels(decoder)
    if packs(decoder):
        decoder.compute_with(PackedLinear(decoder))
    cache, masks = filled_cache(decoder), CausalMasks(torch.device("cpu"), dtype)

    def step(count: int, chunks: list[Chunk]) -> dict[str, Callable[[], object]]:
        rows = np.arange(count)

        def by_torch() -> None:
            attention = StepAttention(cache, decoder.config.num_heads, rows, chunks, masks)
            tokens = torch.from_numpy(cache.tokens[attention.rows, attention.positions].astype(np.int64))
            decoder.logits(decoder.forward(tokens, torch.from_numpy(attention.positions), attention)[-ROWS:])

        def native() -> None:
            kernels.logits(kernels.forward(cache, *places(cache, rows, chunks), count, None)[-ROWS:])

        return {"torch": by_torch, "native": native}

    cache.lengths[:] = CONTEXT
    with torch.inference_mode():
        found = {f"{count} rows": median_ms(step(count, []), rounds) for count in (1, 8, 32)}
        cache.lengths[:] = 0
        found[f"prompt of {PROMPT}"] = median_ms(step(0, [Chunk(0, 0, PROMPT)]), rounds)
    return {name: {**taken, "ratio": round(taken["torch"] / taken["native"], 2)} for name, taken in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=["1M", "10M", "135M"], default=["1M", "10M", "135M"])
    parser.add_argument("--rounds", type=int, default=9, help="of each step")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    detail = {
        f"{size} {str(dtype).removeprefix('torch.')}": measure(size, dtype, args.rounds)
        for size in args.sizes
        for dtype in (torch.float32, torch.bfloat16)
    }
    decoding = [step["ratio"] for steps in detail.values() for name, step in steps.items() if "rows" in name]
    prompts = [step["ratio"] for steps in detail.values() for name, step in steps.items() if "prompt" in name]
    figures = {
        "decoding_vs_torch_min": min(decoding), "decoding_vs_torch_max": max(decoding),
        "prompt_vs_torch_min": min(prompts), "prompt_vs_torch_max": max(prompts),
    }  # fmt: skip
    note = "milliseconds of a step with its logits (of the last 32 tokens at most), medians"
    write_result(
        "steps", figures, {"note": note, "rounds": args.rounds, "torch": torch.__version__, **detail}, args.out
    )


if __name__ == "__main__":
    main()
