"""Serves an ASGI application until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket

import uvicorn
from starlette.types import ASGIApp

from woodshed.record.atomic import write_whole

from .settings import ServerSettings


async def listen(app: ASGIApp, settings: ServerSettings, stack: contextlib.AsyncExitStack) -> None:
    """Answer requests; ``settings.ready_file`` says from when on. Requests that run at the end have
    ``settings.shutdown_seconds``. Raises OSError where the address cannot be had."""
    listener = socket.create_server((settings.host, settings.port), backlog=1024)
    stack.callback(listener.close)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning",
        timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)), timeout_keep_alive=75,
    )  # fmt: skip
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    url = f"http://{settings.host}:{listener.getsockname()[1]}"
    if settings.ready_file is not None:
        write_whole(settings.ready_file, json.dumps({"url": url, "pid": os.getpid()}))
    await serving
