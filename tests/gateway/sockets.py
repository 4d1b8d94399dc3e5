"""A gateway in the test's own event loop, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from tests.engine.served import _no_signals


@asynccontextmanager
async def listening(app: ASGIApp, *, buffer: int | None = None) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    """``buffer``: bytes that the kernel takes in for a client that does not read."""
    listener = socket.create_server(("127.0.0.1", 0))
    if buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
    config = uvicorn.Config(
        app, http="httptools", lifespan="off", log_level="warning", timeout_keep_alive=75, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        await task
        listener.close()
