"""One rollout of a program of others against a real gateway, for the tests and for ``benchmarks/agents.py``."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from gateway.parts import ADMIN, HERMES, ScriptedEngine

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.policy.tokenizer import Tokenizer
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits
from woodshed.stages.arena import make_agent


@contextmanager
def served(engine: ScriptedEngine, tokenizer: Tokenizer = HERMES) -> Iterator[str]:
    """The gateway on a real port, in a thread; its URL."""
    with serve_app(build_app(engine, get_format("hermes"), tokenizer, admin_key=ADMIN)) as url:
        yield url


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """An application on a real port, in a thread; its URL."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def recorded_as_sampled(engine: ScriptedEngine, done: Trajectory) -> bool:
    """Whether each segment has the tokens that the engine sampled for it: all of them, in their order."""
    said: dict[str | None, list[int]] = {}
    for session, _, completion in engine.calls:
        said.setdefault(session, []).extend(completion.tokens)
    return list(said.values()) == [segment.tokens[segment.sampled].tolist() for segment in done.segments]


async def play(
    task: Task,
    layers: LayerStore,
    url: str,
    harness: HarnessSettings,
    *,
    limits: Limits,
    egress_log: Path | None = None,
    resume: bool = False,
    **rest: Any,
) -> Trajectory:
    """One attempt, in a box of its own; ``rest`` goes to the arena."""
    backend = open_backend(egress_log=egress_log)
    async with httpx.AsyncClient() as client:
        arena = Arena(
            backend=backend,
            layers=layers,
            admin=GatewayAdmin(url, ADMIN, client=client),
            base_url=url,
            agent=make_agent(harness, layers, client),
            policy="the-policy",
            attempts=1,
            limits=limits,
            **rest,
        )
        try:
            return await rollout(arena, task, id="t", group="g", source="train", seed=7, resume=resume)
        finally:
            await backend.close()
