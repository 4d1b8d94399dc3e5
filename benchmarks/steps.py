"""Compare single steps of the engine with its own kernels and with torch's operators: ``python benchmarks/steps.py``.

For every size of policy and number format: decoding of 1, 8 and 32 rows at a context of 540 tokens, and a prompt of 512
tokens, measured alternately with one thread; the kernels have their memory in huge pages and, on Linux, in small pages
too. Also the draw of 32 tokens, for all rows at once and for a few at a time. Milliseconds are medians; figures are the
worst and best ratio.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from peers.policies import open_decoder
from result import write_result

from woodshed.engine import sampler
from woodshed.engine.attention import CausalMasks, Chunk, StepAttention, places
from woodshed.engine.cache import RowCache
from woodshed.engine.native.kernels import Kernels
from woodshed.engine.packing import PackedLinear, packs
from woodshed.engine.protocol import Sampling
from woodshed.policy.decoder import Decoder

PR_SET_THP_DISABLE = 41  # <linux/prctl.h>
ROWS, LENGTH, CONTEXT, PROMPT = 32, 640, 540, 512
VOCABULARIES = (4096, 49_152)


def filled_cache(decoder: Decoder) -> RowCache:
    c = decoder.config
    cache = RowCache(
        layers=c.num_layers,
        kv_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        dtype=decoder.dtype,
        device=torch.device("cpu"),
        budget=4 << 30,
        max_rows=ROWS,
        step=LENGTH,
    )
    for _ in range(ROWS):
        cache.acquire(None, LENGTH)
    for buffer in (*cache.keys, *cache.values):
        buffer.normal_()
    cache.tokens[:] = np.random.default_rng(0).integers(c.vocab_size, size=cache.tokens.shape)
    return cache


@contextmanager
def small_pages() -> Iterator[None]:
    """Put memory that is first written in the body into small pages, even if huge pages are requested."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    yield
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def median_ms(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each call, measured alternately; the first round is a warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - began)
    return {name: round(1000 * statistics.median(taken[1:]), 2) for name, taken in seconds.items()}


def measure(size: str, dtype: torch.dtype, rounds: int) -> dict[str, dict[str, float]]:
    decoder = open_decoder(size).to(dtype).requires_grad_(False)
    memory = {"native": (Kernels(decoder), filled_cache(decoder))}
    if sys.platform == "linux":
        with small_pages():
            memory["small pages"] = (Kernels(decoder), filled_cache(decoder))
    if packs(decoder):
        decoder.compute_with(PackedLinear(decoder))
    masks, cache = CausalMasks(torch.device("cpu"), dtype), memory["native"][1]

    def step(length: int, count: int, chunks: list[Chunk]) -> dict[str, Callable[[], object]]:
        rows = np.arange(count)
        for _, held in memory.values():
            held.lengths[:] = length

        def by_torch() -> None:
            attention = StepAttention(cache, decoder.config.num_heads, rows, chunks, masks)
            tokens = torch.from_numpy(cache.tokens[attention.rows, attention.positions].astype(np.int64))
            decoder.logits(decoder.forward(tokens, torch.from_numpy(attention.positions), attention)[-ROWS:])

        def native(name: str) -> None:
            kernels, held = memory[name]
            kernels.logits(kernels.forward(held, *places(held, rows, chunks), count, None)[-ROWS:])

        return {"torch": by_torch, **{name: partial(native, name) for name in memory}}

    with torch.inference_mode():
        found = {f"{count} rows": median_ms(step(CONTEXT, count, []), rounds) for count in (1, 8, 32)}
        found[f"prompt of {PROMPT}"] = median_ms(step(0, 0, [Chunk(0, 0, PROMPT)]), rounds)
    return found


def draw(vocabulary: int, rounds: int) -> dict[str, float]:
    logits = torch.randn(ROWS, vocabulary, generator=torch.Generator().manual_seed(0))
    usual = sampler.NUMBERS_AT_ONCE

    def drawn(numbers: int) -> None:
        sampler.NUMBERS_AT_ONCE = numbers
        sampler.sample(logits, [Sampling()] * ROWS, [0.5] * ROWS)

    with torch.inference_mode():
        return median_ms({"all rows": partial(drawn, logits.numel()), "few": partial(drawn, usual)}, rounds)


def ratios(steps: dict[str, dict[str, float]], of: str, to: str, what: str) -> list[float]:
    return [round(ms[of] / ms[to], 2) for name, ms in steps.items() if what in name and of in ms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=["1M", "10M", "135M"], default=["1M", "10M", "135M"])
    parser.add_argument("--rounds", type=int, default=9, help="of each step")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # first, while the allocator has no freed pages, of which drawing all rows at once would profit
    draws = {f"draw of {ROWS} among {vocabulary}": draw(vocabulary, args.rounds) for vocabulary in VOCABULARIES}
    detail = {
        f"{size} {str(dtype).removeprefix('torch.')}": measure(size, dtype, args.rounds)
        for size in args.sizes
        for dtype in (torch.float32, torch.bfloat16)
    }
    steps = {f"{policy}, {step}": ms for policy, found in detail.items() for step, ms in found.items()}
    figures: dict[str, float | None] = {}
    for figure, of, what in (
        ("decoding_vs_torch", "torch", "rows"),
        ("prompt_vs_torch", "torch", "prompt"),
        ("decoding_vs_small_pages", "small pages", "rows"),
        ("prompt_vs_small_pages", "small pages", "prompt"),
    ):
        found = ratios(steps, of, "native", what)
        figures |= {f"{figure}_min": min(found, default=None), f"{figure}_max": max(found, default=None)}
    figures["draw_few_vs_all_max"] = max(ratios(draws, "all rows", "few", "draw"))
    note = "milliseconds of a step with its logits (of the last 32 tokens at most), medians"
    about = {"note": note, "rounds": args.rounds, "torch": torch.__version__}
    write_result("steps", figures, {**about, **detail, **draws}, args.out)


if __name__ == "__main__":
    main()
