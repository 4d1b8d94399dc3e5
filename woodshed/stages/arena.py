"""Opening what rollouts need: sandbox backend, gateway client, layers, rewards."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from woodshed.cluster.idle import IdleClock
from woodshed.gateway.client import GatewayAdmin
from woodshed.grading.settings import GradingSettings
from woodshed.harness.endpoint import pooled_client
from woodshed.monitors.judge import Judge, judge_key
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.rl.settings import RLSettings
from woodshed.rollout.rewards import raw_outcome
from woodshed.rollout.rollout import Arena

from .boxes import backend_of, layer_store
from .programs import program_layers
from .servers import address_of


def open_judge(settings: RLSettings, log: Path) -> Judge | None:
    """The judge of a run, if its recipe asks for one. Raises JudgeError where its key is missing."""
    if settings.monitors.judge == "off" or settings.judge is None:
        return None
    return Judge(settings.judge, judge_key(settings.judge), log)


@asynccontextmanager
async def open_arena(
    recipe: Recipe, run: RunDirectory, *, grading: GradingSettings, training: bool
) -> AsyncIterator[Arena]:
    """An arena on the run's policy server; waits until the server answers. ``grading`` has the key (``with_key``)."""
    layers = layer_store()
    program = await asyncio.to_thread(program_layers, recipe.harness.program, layers)
    await _ready(run.root / "server" / "ready.json")
    url, admin_key = address_of(run)
    backend = backend_of(recipe.sandbox, run.egress_log, run.placed_boxes)
    client = pooled_client()
    admin = GatewayAdmin(url, admin_key)
    judge = open_judge(recipe.rl, run.judge_log)
    try:
        yield Arena(
            backend=backend,
            layers=layers,
            admin=admin,
            client=client,
            base_url=url,
            harness=recipe.harness,
            program_layers=program,
            policy=recipe.name,
            temperature=1.0 if training else recipe.evaluate.temperatures[0],
            attempts=recipe.rl.attempts,
            max_failures=recipe.rl.max_failures,
            limits=recipe.sandbox.limits(),
            egress=recipe.sandbox.egress(),
            monitors=recipe.rl.monitors,
            judge=judge,
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
    """``seconds`` without progress of the run, whose other programs this one's parent has started."""
    clock = IdleClock(os.getppid())
    while not path.exists():
        if clock.look() > seconds:
            raise TimeoutError(f"the policy server is not ready, and nothing happened for {seconds:.0f} s; see its log")
        await asyncio.sleep(0.2)
