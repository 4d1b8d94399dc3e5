"""Compare decoding with and without speculation: ``python benchmarks/speculation.py RUN [RUN ...]``.

RUN is a run folder (its policy after RL and the conversations of SFT are used). A multi-token-prediction (MTP) head is
distilled from that policy on nine tenths of the conversations, then replies of the last tenth are sampled at
temperature 1 in three ways, alternately: without drafts, with drafts of the head, with drafts by prompt lookup.
Decoding uses one thread. The tokens of the three are compared, as they should be the same.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from result import write_result

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.settings import EngineSettings
from woodshed.policy.hf import Policy, load_policy
from woodshed.policy.mtp import MtpHead
from woodshed.recipe.stages import MtpSettings
from woodshed.stages.examples import Example, batches, load_examples
from woodshed.stages.mtp import distill_batch
from woodshed.train.optim import Optimizer, lr_factor
from woodshed.train.settings import OptimizerSettings, ScheduleSettings

WAYS = ("off", "mtp", "ngram")


def head_of(policy: Policy, examples: list[Example], settings: MtpSettings, microbatch: int) -> tuple[MtpHead, float]:
    """Distil a head; return it and the share of next tokens that it predicted correctly in the last batch."""
    policy.decoder.requires_grad_(False)
    head = MtpHead(policy.config, seed=0)
    optimizer = Optimizer(head, OptimizerSettings(kind="adamw", lr=settings.lr))
    schedule = ScheduleSettings(kind="linear", warmup_steps=10, total_steps=settings.steps)
    endless = itertools.chain.from_iterable(batches(examples, settings.batch_tokens, seed=s) for s in itertools.count())
    agreed = 0.0
    for step, batch in enumerate(itertools.islice(endless, settings.steps)):
        _, agreed = distill_batch(policy.decoder, head, batch, settings, microbatch)
        optimizer.step(lr_factor(step, schedule))
        head.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"head: step {step} of {settings.steps}, {agreed:.0%} guessed right", flush=True)
    return head, agreed


def asks_of(examples: list[Example], count: int) -> list[list[int]]:
    """Return ``count`` conversations, each cut at the beginning of one of the policy's replies, whose number varies."""
    asks = []
    for i, example in enumerate(examples):
        begins = [t for t in range(1, len(example.tokens)) if example.weights[t] and not example.weights[t - 1]]
        if begins:
            asks.append(example.tokens[: begins[i % len(begins)]].tolist())
    return asks[:count]


async def replies(
    engine: LocalEngine, asks: list[list[int]], together: int, samplings: list[Sampling]
) -> list[Completion]:
    """Sample replies, ``together`` at a time; return them in order."""
    room = asyncio.Semaphore(together)

    async def one(ask: list[int], sampling: Sampling) -> Completion:
        async with room:
            return await engine.generate(ask, sampling)

    return list(await asyncio.gather(*(one(a, s) for a, s in zip(asks, samplings))))


async def measure(policy: Policy, head: MtpHead, asks: list[list[int]], runs: int, most: int) -> dict[str, Any]:
    samplings = [Sampling(max_tokens=most, seed=i, stop_ids=policy.stop_ids()) for i in range(len(asks))]
    table: dict[str, Any] = {}
    for together in (1, 4):
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        counts: dict[str, dict[str, float]] = {}
        tokens: dict[str, list[list[int]]] = {}
        for _ in range(runs):
            for way in WAYS:
                settings = EngineSettings.model_validate({"speculate": way, "prefix_cache": "off"})
                engine = LocalEngine(policy.decoder, settings=settings, mtp=head)
                # warm up
                await replies(engine, asks[:1], 1, samplings[:1])
                before, began = engine.stats(), time.perf_counter()
                done = await replies(engine, asks, together, samplings)
                seconds[way].append(time.perf_counter() - began)
                after = engine.stats()
                await engine.close()
                tokens[way] = [c.tokens for c in done]
                names = ("drafted_tokens", "accepted_tokens", "generated_tokens", "iterations")
                counts[way] = {name: after[name] - before[name] for name in names}
        same = sum(a == b == c for a, b, c in zip(*(tokens[way] for way in WAYS))) / len(asks)
        table[str(together)] = {
            "same_replies": round(same, 4),
            "seconds": {way: [round(s, 3) for s in values] for way, values in seconds.items()},
            "speedup": {
                way: round(statistics.median(a / b for a, b in zip(seconds["off"], seconds[way])), 3)
                for way in WAYS[1:]
            },
            "accepted": {
                way: round(counts[way]["accepted_tokens"] / max(1, counts[way]["drafted_tokens"]), 3)
                for way in WAYS[1:]
            },
            "tokens_per_iteration": {
                way: round(counts[way]["generated_tokens"] / counts[way]["iterations"], 3) for way in WAYS
            },
        }
    return table


def _ratio(plain: list[float], guessed: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(plain, guessed)), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps of the head")
    parser.add_argument("--replies", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--microbatch", type=int, default=4096, help="tokens of one forward pass while distilling")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="while distilling; decoding has one")
    given = parser.parse_args()
    figures: dict[str, float | None] = {}
    detail: dict[str, Any] = {}
    for run in given.runs:
        torch.set_num_threads(given.threads)
        policy = load_policy(run / "policy" / "final", dtype=torch.float32)
        examples = load_examples(run / "demonstrations" / "examples.npz")
        held = len(examples) // 10
        settings = MtpSettings(steps=given.steps)
        head, agreed = head_of(policy, examples[held:], settings, given.microbatch)
        torch.set_num_threads(1)
        table = asyncio.run(measure(policy, head, asks_of(examples[:held], given.replies), given.repeats, 128))
        size = f"{policy.decoder.num_parameters / 1e6:.0f}M"
        for way in WAYS[1:]:
            figures[f"{way}_speedup_{size}"] = table["1"]["speedup"][way]
            figures[f"{way}_accepted_{size}"] = table["1"]["accepted"][way]
        figures[f"same_replies_{size}"] = min(t["same_replies"] for t in table.values())
        detail[size] = {"head_steps": given.steps, "agreement": round(agreed, 4), "by_concurrency": table}
    write_result("speculation", figures, detail)


if __name__ == "__main__":
    main()
