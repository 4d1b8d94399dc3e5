"""Open the arena that rollouts need: sandbox backend, gateway client, layers, rewards, agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx

from woodshed.cluster.idle import IdleClock
from woodshed.engine.settings import Truncation
from woodshed.gateway.client import GatewayAdmin
from woodshed.grading.settings import GradingSettings
from woodshed.harness.endpoint import pooled_client
from woodshed.harness.settings import HarnessSettings
from woodshed.monitors.judge import Judge, judge_key
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.rl.reader.reader import Reader
from woodshed.rl.reader.servers import open_server
from woodshed.rl.settings import RLSettings
from woodshed.rollout.agent import Agent, BuiltinAgent, ProgramAgent
from woodshed.rollout.rewards import raw_outcome
from woodshed.rollout.rollout import Arena
from woodshed.sandbox.layers import LayerStore

from .boxes import backend_of, layer_store
from .programs import program_layers
from .servers import address_of


def open_judge(settings: RLSettings, log: Path) -> Judge | None:
    """Return the judge of a run, None if its recipe asks for none. Raises JudgeError if its key is missing."""
    if settings.monitors.judge == "off" or settings.judge is None:
        return None
    return Judge(settings.judge, judge_key(settings.judge), log)


@asynccontextmanager
async def open_reader(
    settings: RLSettings, log: Path, admin: GatewayAdmin, url: str, policy: str, client: httpx.AsyncClient
) -> AsyncIterator[Reader | None]:
    """Yield the reader of a run, None if its recipe has none. Raises JudgeError if its key is missing."""
    if settings.reader is None:
        yield None
        return
    hints = "reader" in settings.hints.triggers
    async with open_server(settings.reader, admin, url, policy, client) as server:
        yield Reader(settings.reader, server, hints=hints, rubrics=settings.rubrics, log=log)


def make_agent(harness: HarnessSettings, layers: LayerStore, client: httpx.AsyncClient) -> Agent[Any]:
    """Return the agent of a recipe: ``harness.program`` if it names one, else the built-in. Raises ProgramError."""
    if harness.program is not None:
        return ProgramAgent(harness, program_layers(harness.program, layers))
    return BuiltinAgent(harness, client)


@asynccontextmanager
async def open_arena(
    recipe: Recipe, run: RunDirectory, *, grading: GradingSettings, training: bool
) -> AsyncIterator[Arena]:
    """Yield an arena on the run's policy server, once the server is ready. ``grading`` must contain the held-out key
    (``with_key``)."""
    layers = layer_store()
    client = pooled_client()
    agent = await asyncio.to_thread(make_agent, recipe.harness, layers, client)
    await _ready(run.root / "server" / "ready.json")
    url, admin_key = address_of(run)
    backend = backend_of(recipe.sandbox, run.egress_log, run.placed_boxes)
    admin = GatewayAdmin(url, admin_key, client=client)
    judge = open_judge(recipe.rl, run.judge_log)
    try:
        reading = open_reader(recipe.rl, run.reader_log, admin, url, recipe.name, client) if training else nullcontext()
        async with reading as reader:
            yield Arena(
                backend=backend,
                layers=layers,
                admin=admin,
                base_url=url,
                agent=agent,
                policy=recipe.name,
                temperature=1.0 if training else recipe.evaluate.temperatures[0],
                truncation=recipe.rl.sampling if training else Truncation(),
                attempts=recipe.rl.attempts,
                max_infra_rate=recipe.rl.max_infra_rate,
                infra_window=recipe.rl.infra_window,
                limits=recipe.sandbox.limits(),
                egress=recipe.sandbox.egress(),
                monitors=recipe.rl.monitors,
                judge=judge,
                read=None if reader is None else reader.read,
                grading=grading,
                reward=recipe.rl.make_reward() if training else raw_outcome,
            )
    finally:
        if judge is not None:
            await judge.close()
        await client.aclose()
        await admin.close()
        await backend.close()


async def _ready(path: Path, seconds: float = 180.0) -> None:
    """Wait until the file ``path`` exists. Raises TimeoutError after ``seconds`` without progress of the run, measured
    over the programs that this process's parent has started."""
    clock = IdleClock(os.getppid())
    while not path.exists():
        if clock.look() > seconds:
            raise TimeoutError(f"the policy server is not ready, and nothing happened for {seconds:.0f} s; see its log")
        await asyncio.sleep(0.2)
