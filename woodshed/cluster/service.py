"""Parts shared by all HTTP services of Woodshed: admin key, serving until a signal, metrics as Prometheus text."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from woodshed.record.atomic import write_whole

from .supervisor import family_of

ADMIN_VARIABLE = "WOODSHED_ADMIN_KEY"

Announce = Callable[[str], None]
"""Is called with the URL of a service once it answers."""


def key_hash(key: str) -> bytes:
    """SHA-256 of a key. Keys are 256 random bits, so neither salt nor stretching would add anything."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class AdminKey:
    """The key of a service's operator. Raises ValueError if it is too short."""

    def __init__(self, key: str) -> None:
        if len(key) < 16:
            raise ValueError("the admin key is shorter than 16 characters; write a long random one")
        self._digest = key_hash(key)

    def matches(self, key: str | None) -> bool:
        return key is not None and hmac.compare_digest(key_hash(key), self._digest)


def bearer(header: bytes | None) -> str | None:
    """Return the key in an ``Authorization: Bearer KEY`` header, or None."""
    if header is None or header[:7].lower() != b"bearer ":
        return None
    return header[7:].decode("latin-1").strip() or None


def read_admin_key(path: Path | None) -> str:
    """Read the admin key from the file if one is given, else from the environment. Raises ValueError that says what to
    do, also for a key that no HTTP header can hold: clients would put it into the message of their error."""
    where = str(path or ADMIN_VARIABLE)
    try:
        key = os.environ.get(ADMIN_VARIABLE, "") if path is None else path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot read the admin key: {error.strerror}") from None
    except UnicodeDecodeError:
        key = "\0"
    key = key.strip()
    if not key:
        raise ValueError(f"no admin key in {where}: name a file with --admin-key-file, or set {ADMIN_VARIABLE}")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"{where}: not an admin key: write one line of letters and digits (`openssl rand -hex 32`)")
    return key


async def listen(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    shutdown_seconds: float,
    stack: contextlib.AsyncExitStack,
    ready_file: Path | None = None,
    stopped: Callable[[], Awaitable[None]] | None = None,
    announce: Announce | None = None,
) -> None:
    """Serve ``app`` until SIGTERM or SIGINT; requests still running then have ``shutdown_seconds`` to end.

    Port 0 takes a free one. Once the service answers, ``ready_file`` is written as JSON ``{"url", "pid"}`` and
    ``announce`` is called. ``stopped`` waits for what the service cannot do without and raises the reason when it
    stops; this ends the service. Raises OSError if the address cannot be bound.
    """
    listener = socket.create_server((host, port), family=family_of(host), backlog=1024)
    stack.callback(listener.close)
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=max(1, round(shutdown_seconds)),
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    if ready_file is not None:
        write_whole(ready_file, json.dumps({"url": url, "pid": os.getpid()}))
    if announce is not None and server.started:
        announce(url)
    if stopped is not None:
        stopping = asyncio.ensure_future(stopped())
        stack.callback(stopping.cancel)
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            server.should_exit = True
            await serving
            stopping.result()
    await serving


CONTENT_TYPE = "text/plain; version=0.0.4"


def metric(name: str, kind: str, about: str, value: float) -> list[str]:
    """Return the lines of one metric."""
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value}"]


def engine_lines(stats: Mapping[str, Any]) -> list[str]:
    """Return the lines of the numbers in an engine's ``stats()``."""
    lines: list[str] = []
    for key, value in stats.items():
        if isinstance(value, (int, float)):
            lines += metric(f"woodshed_engine_{key}", "gauge", f"Engine: {key.replace('_', ' ')}", float(value))
    return lines
