"""The engine beside transformers' ``generate``, in one process on one thread: ``python benchmarks/engine.py``.

Weights are random (speed does not depend on them) and the same on both sides. Runs alternate between the two and
ratios are those of the medians. ``generate`` gets equally long prompts, so it pays no padding, and need not return
log-probabilities; the engine returns them, as always.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from result import write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.state import hf_state

SIZES = {
    "1M": DecoderConfig(
        vocab_size=1280, d_model=128, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=32, d_ff=384,
        max_positions=1024,
    ),
    "10M": DecoderConfig(
        vocab_size=4096, d_model=256, num_layers=8, num_heads=4, num_kv_heads=2, head_dim=64, d_ff=1024,
        max_positions=1024,
    ),
}  # fmt: skip
CONCURRENT, PROMPT, OUTPUT = 32, 512, 64
TURNS, FIRST, REPLY, OBSERVED = 8, 128, 24, 32


def reference(policy: Decoder) -> Any:
    """The same network in transformers."""
    config = transformers.Qwen3Config(**{**policy.config.to_hf(), "attn_implementation": "sdpa"})
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.load_state_dict({name: tensor.clone() for name, tensor in hf_state(policy).items()}, strict=False)
    model.tie_weights()
    model.generation_config = transformers.GenerationConfig(do_sample=True, top_k=0, pad_token_id=0, eos_token_id=None)
    return model


def prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocabulary) for _ in range(length)] for _ in range(count)]


async def engine_single(engine: LocalEngine, asks: list[list[int]]) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(a, Sampling(max_tokens=OUTPUT)) for a in asks)))


async def engine_agents(
    engine: LocalEngine, asks: list[list[int]], observations: list[list[int]]
) -> list[list[tuple[list[int], Completion]]]:
    async def agent(i: int, tokens: list[int]) -> list[tuple[list[int], Completion]]:
        turns = []
        for turn in range(TURNS):
            done = await engine.generate(tokens, Sampling(max_tokens=REPLY), session=str(i))
            turns.append((tokens, done))
            tokens = tokens + done.tokens + observations[turn]
        engine.release(str(i))
        return turns

    return list(await asyncio.gather(*(agent(i, a) for i, a in enumerate(asks))))


def hf_single(model: Any, asks: list[list[int]]) -> None:
    with torch.inference_mode():
        model.generate(torch.tensor(asks), max_new_tokens=OUTPUT)


def hf_agents(model: Any, asks: list[list[int]], observations: list[list[int]]) -> None:
    tokens = torch.tensor(asks)
    with torch.inference_mode():
        for turn in range(TURNS):
            tokens = model.generate(tokens, max_new_tokens=REPLY)
            tokens = torch.cat((tokens, torch.tensor(observations[turn]).expand(len(tokens), -1)), dim=1)


class Clock:
    """Wall-clock and CPU seconds of each run, by name."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.setdefault(name, []).append(round(time.perf_counter() - wall, 3))
        self.cpu.setdefault(name, []).append(round(time.process_time() - cpu, 3))


async def throughput(engine: LocalEngine, vocabulary: int) -> dict[str, dict[str, float]]:
    """Tokens per CPU-second by batch size: prefill of 200-token prompts, then decoding of 48 tokens after them.

    The counts are the engine's own, so that a prompt found in the cache could not pass for a computed one.
    """
    table: dict[str, dict[str, float]] = {}
    for batch in (1, 8, 32, 64, 128):
        asks = prompts(batch, 200, vocabulary, batch)
        rates: dict[str, float] = {}
        for kind, tokens in (("prefilled_tokens", 1), ("generated_tokens", 48)):
            before, began = engine.stats()[kind], time.process_time()
            await asyncio.gather(
                *(engine.generate(a, Sampling(max_tokens=tokens), session=str(i)) for i, a in enumerate(asks))
            )
            rates[f"{kind}_per_cpu_s"] = round((engine.stats()[kind] - before) / (time.process_time() - began))
        for i in range(batch):
            engine.release(str(i))
        table[str(batch)] = rates
    return table


def worst_gap(model: Any, episodes: list[list[tuple[list[int], Completion]]]) -> float:
    """Largest difference between the engine's log-probabilities and those of a full forward in transformers."""
    worst = 0.0
    for turns in episodes:
        prompt, done = turns[-1]
        sequence = torch.tensor([prompt + done.tokens])
        with torch.inference_mode():
            logp = model(sequence).logits[0].float().log_softmax(-1)
        for prompt, done in turns:
            at = torch.arange(len(prompt) - 1, len(prompt) + len(done.tokens) - 1)
            gap = logp[at, torch.tensor(done.tokens)] - torch.tensor(done.logprobs)
            worst = max(worst, float(gap.abs().max()))
    return worst


async def measure(size: str, runs: int) -> dict[str, Any]:
    config = SIZES[size]
    policy = Decoder(config, seed=0)
    model = reference(policy)
    engine = LocalEngine(policy, settings=EngineSettings(seed=0))
    clock, gap = Clock(), 0.0
    try:
        await throughput(engine, config.vocab_size)  # untimed: the cache grows to its size
        await engine_single(engine, prompts(CONCURRENT, PROMPT, config.vocab_size, 99))
        hf_single(model, prompts(2, 16, config.vocab_size, 99))
        table = await throughput(engine, config.vocab_size)
        for run in range(runs):
            asks = prompts(CONCURRENT, PROMPT, config.vocab_size, 100 + run)
            with clock.time("engine_single"):
                await engine_single(engine, asks)
            with clock.time("hf_single"):
                hf_single(model, asks)
            asks = prompts(CONCURRENT, FIRST, config.vocab_size, 200 + run)
            observations = prompts(TURNS, OBSERVED, config.vocab_size, 300 + run)
            with clock.time("engine_agents"):
                episodes = await engine_agents(engine, asks, observations)
            with clock.time("hf_agents"):
                hf_agents(model, asks, observations)
            gap = max(gap, worst_gap(model, episodes[:8]))
        update = await engine.update_weights(1, {k: v.clone() for k, v in hf_state(policy).items()})
    finally:
        await engine.close()
    median = {name: statistics.median(values) for name, values in clock.wall.items()}
    cpu = {name: statistics.median(values) for name, values in clock.cpu.items()}
    return {
        "parameters": policy.num_parameters,
        "throughput_by_batch": table,
        "wall_seconds": clock.wall,
        "cpu_seconds": clock.cpu,
        "output_tokens_per_s": {
            "engine_single": round(CONCURRENT * OUTPUT / median["engine_single"]),
            "hf_single": round(CONCURRENT * OUTPUT / median["hf_single"]),
            "engine_agents": round(CONCURRENT * TURNS * REPLY / median["engine_agents"]),
            "hf_agents": round(CONCURRENT * TURNS * REPLY / median["hf_agents"]),
        },
        "single_vs_generate": round(median["hf_single"] / median["engine_single"], 2),
        "multiturn_vs_generate": round(median["hf_agents"] / median["engine_agents"], 2),
        "cpu_ratio": {
            "single_vs_generate": round(cpu["hf_single"] / cpu["engine_single"], 2),
            "multiturn_vs_generate": round(cpu["hf_agents"] / cpu["engine_agents"], 2),
        },
        "max_abs_dlogp_fp32": gap,
        "weight_swap_ms": round(1000 * update, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    results = {size: asyncio.run(measure(size, args.runs)) for size in args.sizes}
    write_result(
        "engine",
        {
            "single_vs_generate": min(r["single_vs_generate"] for r in results.values()),
            "multiturn_vs_generate": min(r["multiturn_vs_generate"] for r in results.values()),
            "max_abs_dlogp_fp32": max(r["max_abs_dlogp_fp32"] for r in results.values()),
        },
        {
            "note": "each figure is the worst over the sizes; ratios are of wall-clock medians, cpu_ratio of process "
            "CPU seconds (less disturbed by other work on the machine); multiturn_vs_vllm was not measured, because "
            "vLLM's CPU build is not among the dependencies",
            "single": f"{CONCURRENT} prompts of {PROMPT} tokens at once, {OUTPUT} sampled tokens each",
            "multiturn": f"{CONCURRENT} trajectories of {TURNS} turns: {FIRST} tokens first, then {REPLY} sampled and "
            f"{OBSERVED} observed a turn; generate computes the whole context every turn",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "runs": args.runs,
            "sizes": results,
        },
        args.out,
    )


if __name__ == "__main__":
    main()
