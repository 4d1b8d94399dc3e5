"""Where causes of failures are tried: real boxes, a real gateway on a port that can be made to fail, real episodes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import uvicorn

from tests.gateway.parts import ADMIN, HERMES, ScriptedEngine
from tests.grading import toy
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.grading.verify import grade
from woodshed.harness.endpoint import pooled_client
from woodshed.harness.settings import HarnessSettings, LimitSettings, RetrySettings
from woodshed.policy.formats import get_format
from woodshed.record.fault import Fault
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.failures import FAULT, INFRA, RETRIED
from woodshed.rollout.rollout import Arena, rollout
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, Limits

MEND = "sed -i 's/width + height/width * height/' /workspace/shapes/measure.py"
FIX = {"shapes/measure.py": toy.SHAPES.replace("width + height", "width * height").encode()}
HARNESS = HarnessSettings(limits=LimitSettings(wall_seconds=300.0))
LIMITS = Limits(memory=512 << 20, processes=64, cpu_seconds=60.0, file_size=128 << 20, disk=128 << 20)

UNTRIED = "cannot be tried here"

Mode = Literal["well", "refuses", "error", "no json", "no reply", "silent"]


@dataclass(frozen=True)
class Found:
    """``source`` of what failed, and what became of it."""

    source: str
    state: str
    detail: str = ""


class Failing:
    """The gateway, or what ``mode`` says in its place; of all routes, or of those that ``only`` is part of."""

    def __init__(self, app: Any) -> None:
        self.app, self.mode, self.only, self.left = app, "well", "", -1
        """``left``: so many requests fail, then all is well again; -1 for ever."""

    def fail(self, mode: Mode, *, only: str = "", times: int = -1) -> None:
        self.mode, self.only, self.left = mode, only, times

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or self.mode == "well" or self.only not in scope["path"]:
            await self.app(scope, receive, send)
            return
        if self.left == 0:
            self.mode = "well"
            await self.app(scope, receive, send)
            return
        self.left -= 1
        await receive()
        if self.mode == "silent":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        status, body = {
            "refuses": (403, b'{"error": {"code": "no", "message": "no"}}'),
            "error": (500, b"broken"),
            "no json": (200, b"\xff<html>"),
            "no reply": (200, b'{"choices": [{"message": {"content": 7, "tool_calls": ["x"]}}], "key": []}'),
        }[self.mode]
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def call(tool: str, **arguments: Any) -> str:
    """What the policy says."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def run(command: str, timeout: float = 20.0) -> str:
    return call("run_command", command=command, timeout=timeout)


@dataclass
class Ground:
    """One cause is tried on it. ``turn`` is called, in the server's thread, before each reply of the policy."""

    backend: Backend
    layers: LayerStore
    task: Task
    folder: Path
    engine: ScriptedEngine
    server: Failing
    url: str
    client: httpx.AsyncClient
    retry: RetrySettings = field(default_factory=lambda: RetrySettings(attempts=2, first_delay=0.05))

    def arena(self, *, harness: HarnessSettings = HARNESS, **options: Any) -> Arena:
        defaults: dict[str, Any] = {
            "limits": LIMITS,
            "attempts": 2,
            "patience": 20.0,
            "backend": self.backend,
            "base_url": self.url,
        }
        options = defaults | options
        admin = GatewayAdmin(options["base_url"], ADMIN, client=self.client)
        agent = BuiltinAgent(harness, self.client, retry=self.retry)
        return Arena(layers=self.layers, admin=admin, agent=agent, policy="scripted", **options)

    async def trajectory(
        self, *said: str, turn: Callable[[int], None] = lambda number: None, task: Task | None = None, **options: Any
    ) -> Trajectory:
        """An episode of a policy that says these things in turn, then that it is done; also when it is tried again."""
        script = [*said, call("finish", message="done")]
        number = 0

        def say(tokens: list[int]) -> list[int]:
            nonlocal number
            conversation = HERMES.decode(tokens)
            turn(number)
            number += 1
            at = conversation.count("<|im_start|>assistant") - 1
            return list(HERMES.encode(script[min(at, len(script) - 1)] + "<|im_end|>", allow_special=True))

        self.engine.say = say
        return await rollout(self.arena(**options), task or self.task, id="e", group="g", source="train")

    async def episode(self, *said: str, **options: Any) -> Found:
        return found(await self.trajectory(*said, **options))

    async def grading(self, submission: Mapping[str, bytes], task: Task | None = None) -> Found:
        """What becomes of grading ``submission``."""
        try:
            outcome = await grade(task or self.task, submission, self.backend, self.layers)
        except Fault as fault:
            return Found(fault.source, "raised", str(fault))
        return verdict(outcome)


def verdict(outcome: Outcome) -> Found:
    return Found("submission", "rewarded" if outcome.resolved else "not rewarded", outcome.detail)


def found(trajectory: Trajectory) -> Found:
    """Source and state of an episode. One that counts is of the box or of the policy that worked in it."""
    if trajectory.status == INFRA:
        return Found(trajectory.labels[FAULT], "masked", trajectory.error)
    assert trajectory.outcome is not None and trajectory.segments
    rewarded = "rewarded" if trajectory.outcome.resolved else "not rewarded"
    why = trajectory.error or trajectory.outcome.detail
    if trajectory.attempts > 1:
        return Found(trajectory.labels[RETRIED], f"tried again, then {rewarded}", why)
    return Found("box", rewarded, f"{trajectory.status} {why}")


@asynccontextmanager
async def ground(folder: Path, layers: LayerStore, make: Callable[[Path], Backend]) -> AsyncIterator[Ground]:
    engine = ScriptedEngine(lambda _: [], context=1 << 20)
    server = Failing(build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN))
    backend = make(folder / "boxes")
    task = toy.toy_task(folder / "toy", toy.pytest_layer(layers))
    client = pooled_client(30.0)
    with serving(server) as url:
        try:
            yield Ground(backend, layers, task, folder, engine, server, url, client)
        finally:
            server.fail("well")
            await client.aclose()
            await backend.close()


def first_process(backend: Any) -> int:
    """Return the first process of the youngest box, as the host sees it."""
    with open(f"/proc/{backend.pid}/task/{backend.pid}/children") as file:
        return int(file.read().split()[-1])


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def replaced(target: Any, name: str, value: Any) -> Iterator[None]:
    old = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, old)


Try = Callable[[Ground], Awaitable[Found]]


@dataclass(frozen=True)
class Cause:
    """Something that fails, or is made to: by whom, the source that it has to count as, and what has to become of it.

    ``backends``: where it can be tried.
    """

    name: str
    by: Literal["box", "submission", "host", "endpoint"]
    source: str
    states: Sequence[str]
    what: str
    attempt: Try
    backends: Sequence[str] = ("namespace", "gvisor")


CAUSES: dict[str, Cause] = {}


def cause(
    by: Literal["box", "submission", "host", "endpoint"],
    *states: str,
    source: str = "",
    backends: Sequence[str] = ("namespace", "gvisor"),
) -> Callable[[Try], Try]:
    """Register a function; its docstring says what happens."""

    def register(attempt: Try) -> Try:
        name, what = attempt.__name__, (attempt.__doc__ or "").strip()
        CAUSES[name] = Cause(name, by, source or by, states, what, attempt, backends)
        return attempt

    return register
