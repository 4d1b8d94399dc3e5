"""Opening what rollouts need: sandbox backend, gateway client, layers, rewards."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ..gateway.client import GatewayAdmin
from ..grading.behaviours import invalid_calls
from ..grading.effort import effort_penalty
from ..harness.endpoint import pooled_client
from ..recipe.recipe import Recipe
from ..record.trajectory import Effort, Outcome
from ..rl.rollout import Arena, RewardFunction, raw_outcome
from ..rl.settings import RewardSettings
from .boxes import backend_of, layer_store
from .directory import RunDirectory
from .programs import program_layers


def shaped_reward(settings: RewardSettings) -> RewardFunction:
    """The training reward as named terms (design: outcome, effort, behaviours)."""

    def reward(outcome: Outcome, effort: Effort) -> dict[str, float]:
        terms = {"outcome": settings.outcome if outcome.resolved else 0.0}
        if settings.invalid_call:
            terms["invalid_call"] = invalid_calls(effort, weight=settings.invalid_call)
        if settings.effort:
            terms["effort"] = -settings.effort * effort_penalty(effort, k=settings.effort_k, q=settings.effort_q)
        return terms

    return reward


@asynccontextmanager
async def open_arena(recipe: Recipe, run: RunDirectory, *, training: bool) -> AsyncIterator[Arena]:
    """An arena on the run's policy server; waits until the server answers."""
    layers = layer_store()
    program = await asyncio.to_thread(program_layers, recipe.harness.program, layers)
    address = json.loads((run.root / "server" / "address.json").read_text())
    await _ready(run.root / "server" / "ready.json")
    admin_key = Path(address["admin_key_file"]).read_text().strip()
    backend = backend_of(recipe.sandbox, run.egress_log)
    client = pooled_client()
    admin = GatewayAdmin(address["url"], admin_key)
    try:
        yield Arena(
            backend=backend,
            layers=layers,
            admin=admin,
            client=client,
            base_url=address["url"],
            harness=recipe.harness,
            program_layers=program,
            policy=recipe.name,
            temperature=1.0 if training else recipe.evaluate.temperature,
            attempts=recipe.rl.attempts,
            limits=recipe.sandbox.limits(),
            egress=recipe.sandbox.egress(),
            monitors=recipe.rl.monitors,
            reward=shaped_reward(recipe.rl.rewards) if training else raw_outcome,
        )
    finally:
        await client.aclose()
        await admin.close()
        await backend.close()


async def _ready(path: Path, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the policy server did not become ready in {seconds:.0f} s; see its log")
        await asyncio.sleep(0.05)
