"""Engines over HTTP in this process: real servers, real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn

from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Engine
from woodshed.engine.remote.client import RemoteEngine
from woodshed.engine.remote.service import build_service
from woodshed.engine.routing.router import Router
from woodshed.engine.settings import EngineSettings, RoutingSettings
from woodshed.policy.decoder import Decoder

from .models import decoder, running

KEY = "engine-key-of-the-tests"
QUICK = RoutingSettings(poll_seconds=0.05, patience_seconds=20, silence_seconds=10)


class Served:
    """A server that can be killed and started again at its address."""

    def __init__(self, engine: LocalEngine, follow: Any = None) -> None:
        self.engine, self.follow = engine, follow
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        app = build_service(self.engine, admin_key=KEY, follow=self.follow)
        config = uvicorn.Config(
            app, port=self.port, http="httptools", lifespan="off", log_level="critical", timeout_keep_alive=75
        )
        self._server = uvicorn.Server(config)
        self._server.capture_signals = _no_signals  # type: ignore[method-assign]
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.005)

    async def kill(self) -> None:
        """Every connection breaks at once, as with kill -9."""
        assert self._server is not None and self._task is not None
        for listener in self._server.servers:
            listener.close()
        self._abort()
        self._server.should_exit = self._server.force_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        self._abort()

    def _abort(self) -> None:
        assert self._server is not None
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()


class _no_signals:
    """The test's process keeps its signal handlers."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


@asynccontextmanager
async def serving(policy: Decoder | None = None, *, version: int = 0, **settings: Any) -> AsyncIterator[Served]:
    # steps of a millisecond and more, so that something can happen between two
    engine = LocalEngine(policy or decoder(), settings=EngineSettings(**{"native": "off", **settings}), version=version)
    served = Served(engine)
    await served.start()
    try:
        yield served
    finally:
        await served.kill()
        for one in {engine, served.engine}:  # a test may have put another in its place
            await one.close()


@asynccontextmanager
async def routed(*served: Served, **settings: Any) -> AsyncIterator[Router]:
    router = Router([RemoteEngine(s.url, KEY) for s in served], QUICK.model_copy(update=settings))
    try:
        await router.ready()
        yield router
    finally:
        await router.close()


@asynccontextmanager
async def remote(policy: Decoder, **settings: Any) -> AsyncIterator[Engine]:
    async with serving(policy, **settings) as served:
        client = RemoteEngine(served.url, KEY)
        await client.refresh()
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def router_of_two(policy: Decoder, **settings: Any) -> AsyncIterator[Engine]:
    """Both engines have the same weights."""
    other = Decoder(policy.config, seed=0)
    other.load_state_dict(policy.state_dict())
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(serving(each, **settings)) for each in (policy, other)]
        yield await stack.enter_async_context(routed(*both))


KINDS: dict[str, Callable[..., Any]] = {"local": running, "remote": remote, "router": router_of_two}
