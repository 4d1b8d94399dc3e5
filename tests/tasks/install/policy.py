"""A policy of a script behind the real gateway: each role has a trajectory of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway.parts import ADMIN, HERMES, ScriptedEngine
from programs import served

from woodshed.gateway.client import GatewayAdmin
from woodshed.harness.endpoint import ChatEndpoint, HttpEndpoint


def call(name: str, **arguments: Any) -> str:
    """A turn that calls a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call><|im_end|>"


FINISH = call("finish")


class ScriptedPolicy:
    """Says ``replies`` in turn, whoever asks. ``prompts`` are what it was shown; ``roles`` the trajectories opened."""

    def __init__(self, url: str, engine: ScriptedEngine) -> None:
        self.url, self.engine = url, engine
        self.roles: list[str] = []
        self._endpoints: list[HttpEndpoint] = []

    def says(self, *replies: str) -> None:
        said = iter(replies)
        self.engine.say = lambda _: HERMES.encode(next(said), allow_special=True)

    @property
    def prompts(self) -> list[str]:
        return [HERMES.decode(tokens) for _, tokens, _ in self.engine.calls]

    async def open(self, role: str) -> ChatEndpoint:
        self.roles.append(role)
        async with GatewayAdmin(self.url, ADMIN) as admin:
            key = await admin.open(role, task=role, group="install")
        self._endpoints.append(HttpEndpoint(self.url, key, "the-policy"))
        return self._endpoints[-1]

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.close()


@contextmanager
def scripted_policy() -> Iterator[ScriptedPolicy]:
    engine = ScriptedEngine(lambda _: [], context=1 << 16)
    with served(engine) as url:
        yield ScriptedPolicy(url, engine)
