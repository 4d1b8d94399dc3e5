"""Compare decoding on a GPU with and without CUDA graphs: ``python benchmarks/graphs.py``.

Both engines have the same random weights in bfloat16 and get the same requests, alternately. The figures are ratios of
medians of wall-clock seconds, and the largest difference of log-probabilities of the same tokens. Needs a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from parity import BASE
from result import write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.decoder import Decoder

POLICY = replace(
    BASE, vocab_size=32_768, d_model=1024, num_layers=28, num_heads=16, num_kv_heads=8, head_dim=64, d_ff=3072,
    max_positions=4096,
)  # fmt: skip
BATCHES, PROMPT, OUTPUT = (1, 8, 32, 128), 512, 128


async def serve(engine: LocalEngine, batch: int) -> tuple[float, list[Completion]]:
    prompts = np.random.default_rng(batch).integers(0, POLICY.vocab_size, (batch, PROMPT)).tolist()
    began = time.perf_counter()
    replies = await asyncio.gather(
        *(engine.generate(prompt, Sampling(max_tokens=OUTPUT, seed=i)) for i, prompt in enumerate(prompts))
    )
    return time.perf_counter() - began, list(replies)


def gap(one: list[Completion], other: list[Completion]) -> float:
    """Return the largest difference of log-probabilities before the first token that differs."""
    worst = 0.0
    for a, b in zip(one, other):
        for token_a, token_b, logp_a, logp_b in zip(a.tokens, b.tokens, a.logprobs, b.logprobs):
            if token_a != token_b:
                break
            worst = max(worst, abs(logp_a - logp_b))
    return worst


async def measure(runs: int) -> tuple[dict[str, float | None], dict[str, Any]]:
    decoder = Decoder(POLICY)
    engines = {
        graphs: LocalEngine(
            copy.deepcopy(decoder), device="cuda", settings=EngineSettings(dtype="bfloat16", graphs=graphs, seed=0)
        )
        for graphs in (False, True)
    }
    figures: dict[str, float | None] = {}
    detail: dict[str, Any] = {"runs": runs, "prompt": PROMPT, "output": OUTPUT, "seconds": {}}
    worst = 0.0
    for batch in BATCHES:
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for run in range(runs + 1):
            replies = {}
            for graphs, engine in engines.items():
                took, replies[graphs] = await serve(engine, batch)
                if run:  # the first run records the graphs
                    seconds[graphs].append(took)
            worst = max(worst, gap(replies[False], replies[True]))
        figures[f"faster_at_{batch}"] = statistics.median(seconds[False]) / statistics.median(seconds[True])
        detail["seconds"][batch] = {"plain": seconds[False], "graphs": seconds[True]}
        print(f"batch {batch}: {detail['seconds'][batch]}", file=sys.stderr, flush=True)
    for engine in engines.values():
        await engine.close()
    return {**figures, "max_abs_dlogp": worst}, detail


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("graphs are for a GPU, and torch finds none here")
    write_result("graphs", *asyncio.run(measure(arguments.runs)))


if __name__ == "__main__":
    main()
