"""The arena of each contestant: our own policy server for a checkpoint, or the external server behind a URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx

from woodshed.cluster.supervisor import Supervisor
from woodshed.evaluate.endpoint import EndpointAdmin
from woodshed.gateway.client import GatewayError
from woodshed.grading.settings import GradingSettings
from woodshed.harness.endpoint import pooled_client
from woodshed.harness.registry import harness_hash
from woodshed.record.run_directory import RunDirectory
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena
from woodshed.run.placed import served
from woodshed.stages.arena import make_agent, open_arena
from woodshed.stages.boxes import backend_of, layer_store

from .policies import Contestant, EvaluationError

T = TypeVar("T")
Server = tuple[RunDirectory, Supervisor]
"""Folder of a policy server (``server/address.json``, its log), and its supervisor."""


def hash_of(contestant: Contestant) -> str:
    """Return the harness hash that the contestant's trajectories will have. Fetches the packages of an external program
    if needed."""
    harness = contestant.recipe.harness
    if harness.program is None:
        return harness_hash(harness)
    return make_agent(harness, layer_store(), httpx.AsyncClient()).harness_hash


@contextmanager
def server_of(contestant: Contestant) -> Iterator[Server | None]:
    """Start the policy server of a checkpoint; yield it, or None for a URL. Raises ProgramFailed.

    Enter this in the main thread: the server ends with the thread that started it.
    """
    if contestant.folder is None:
        yield None
        return
    with served(contestant.recipe, contestant.folder) as server:
        yield server


@asynccontextmanager
async def arena_of(contestant: Contestant, server: Server | None, grading: GradingSettings) -> AsyncIterator[Arena]:
    """Yield an arena on ``server``, or on the contestant's URL. Raises EvaluationError if the URL does not answer."""
    if server is not None:
        async with open_arena(contestant.recipe, server[0], grading=grading, training=False) as arena:
            yield arena
        return
    async with _endpoint_arena(contestant, grading) as arena:
        yield arena


@asynccontextmanager
async def _endpoint_arena(contestant: Contestant, grading: GradingSettings) -> AsyncIterator[Arena]:
    recipe = contestant.recipe
    client = pooled_client()
    admin = EndpointAdmin(contestant.url, contestant.key)
    backend = backend_of(recipe.sandbox)
    try:
        try:
            await admin.models()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EvaluationError(f"{contestant.url} does not answer: {type(error).__name__}: {error}") from None
        except (GatewayError, ValueError, KeyError, TypeError, AttributeError):
            pass  # it answers; not every server lists its models
        yield Arena(
            backend=backend,
            layers=layer_store(),
            admin=admin,
            base_url=contestant.url,
            agent=BuiltinAgent(recipe.harness, client),
            policy=contestant.model,
            attempts=recipe.rl.attempts,
            max_infra_rate=recipe.rl.max_infra_rate,
            infra_window=recipe.rl.infra_window,
            limits=recipe.sandbox.limits(),
            egress=recipe.sandbox.egress(),
            monitors=recipe.rl.monitors,
            grading=grading,
        )
    finally:
        await client.aclose()
        await admin.close()
        await backend.close()


async def watched(work: Coroutine[Any, Any, T], server: Server | None) -> T:
    """Run ``work`` while the supervisor of the server restarts programs that die; return its result.

    Raises ProgramFailed if the server does not come back.
    """
    task = asyncio.ensure_future(work)
    if server is None:
        return await task

    async def watch(checked: Supervisor) -> None:
        while True:
            checked.check()
            await asyncio.sleep(0.5)

    watching = asyncio.create_task(watch(server[1]))
    try:
        await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        return await task
    finally:
        for each in (task, watching):
            each.cancel()
        await asyncio.gather(task, watching, return_exceptions=True)
