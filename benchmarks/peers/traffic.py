"""The kinds of traffic that the figures are about: prompts all at once, groups, and agents whose context grows."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from peers.in_transformers import full_logprobs, gap_after
from peers.policies import Load, prompts
from peers.table import Reply
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, Sampling
from woodshed.engine.vllm.client import VllmEngine

GROUP = 8
"""Samples of one prompt, as RL takes them; as many requests in all as of the first kind."""

Episode = list[tuple[list[int], Completion]]


class Served:
    """An engine as a peer."""

    def __init__(self, engine: LocalEngine | VllmEngine) -> None:
        self.engine = engine

    async def sample(self, asks: list[list[int]], tokens: int) -> list[Reply]:
        sampling = Sampling(max_tokens=tokens)
        done = await asyncio.gather(*(self.engine.generate(ask, sampling) for ask in asks))
        return [Reply(one.tokens, one.logprobs) for one in done]


async def engine_agents(
    engine: LocalEngine | VllmEngine, asks: list[list[int]], observations: list[list[int]], reply: int
) -> list[Episode]:
    async def agent(i: int, tokens: list[int]) -> Episode:
        turns = []
        for observed in observations:
            done = await engine.generate(tokens, Sampling(max_tokens=reply), session=str(i))
            turns.append((tokens, done))
            tokens = tokens + done.tokens + observed
        engine.release(str(i))
        return turns

    return list(await asyncio.gather(*(agent(i, a) for i, a in enumerate(asks))))


def generate_agents(model: Any, asks: list[list[int]], observations: list[list[int]], reply: int) -> None:
    """``generate`` keeps nothing between calls: it computes the whole context every turn."""
    tokens = torch.tensor(asks)
    with torch.inference_mode():
        for observed in observations:
            tokens = model.generate(tokens, max_new_tokens=reply)
            tokens = torch.cat((tokens, torch.tensor(observed).expand(len(tokens), -1)), dim=1)


class Clock:
    """Wall-clock and CPU seconds of each run, by name. CPU seconds are this process's, so not those of a server."""

    def __init__(self) -> None:
        self.wall: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        print(f"traffic: {name}", file=sys.stderr, flush=True)
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.setdefault(name, []).append(round(time.perf_counter() - wall, 3))
        self.cpu.setdefault(name, []).append(round(time.process_time() - cpu, 3))


async def traffic(
    engines: dict[str, LocalEngine | VllmEngine], generate: Any, exact: Any, load: Load, vocabulary: int
) -> tuple[Clock, dict[str, float]]:
    """Seconds of ``NAME_single``, ``_groups`` and ``_agents`` by engine and for ``generate`` (a transformers model),
    and how far log-probabilities of the engines' trajectories are at most from a full forward of ``exact`` (another).
    """
    clock, gaps = Clock(), dict.fromkeys(engines, 0.0)
    for run in range(load.runs):
        asks = prompts(load.concurrent, load.prompt, vocabulary, 100 + run)
        for name, engine in engines.items():
            with clock.time(f"{name}_single"):
                await Served(engine).sample(asks, load.output)
        with clock.time("generate_single"), torch.inference_mode():
            generate.generate(torch.tensor(asks), max_new_tokens=load.output)
        asks = prompts(load.concurrent // GROUP, load.prompt, vocabulary, 150 + run)
        for name, engine in engines.items():
            with clock.time(f"{name}_groups"):
                await Served(engine).sample([ask for ask in asks for _ in range(GROUP)], load.output)
        with clock.time("generate_groups"), torch.inference_mode():
            generate.generate(torch.tensor(asks), max_new_tokens=load.output, num_return_sequences=GROUP)
        asks = prompts(load.trajectories, load.first, vocabulary, 200 + run)
        observations = prompts(load.turns, load.observed, vocabulary, 300 + run)
        for name, engine in engines.items():
            with clock.time(f"{name}_agents"):
                episodes = await engine_agents(engine, asks, observations, load.reply)
            gaps[name] = max(gaps[name], *(worst_gap(exact, episode) for episode in episodes[:8]))
        with clock.time("generate_agents"):
            generate_agents(generate, asks, observations, load.reply)
    return clock, gaps


def worst_gap(model: Any, turns: Episode) -> float:
    """Over all turns of a trajectory, from one full forward over its last."""
    prompt, done = turns[-1]
    logp_TV = full_logprobs(model, prompt + done.tokens)
    return max(gap_after(logp_TV, prompt, done.tokens, done.logprobs) for prompt, done in turns)
