"""Serves, on the host, the connections to a box's listening sockets, which lie in the box's network namespace."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from woodshed.sandbox.protocol import Egress, SandboxError

from .proxy import Note, Proxy
from .relay import Budget, Meter, Spent, tunnel
from .rules import parse_rule, split_host

PROXY_PORT = 3128
MAX_OPEN = 128
"""Maximum number of open connections of one box; each takes up to two of this process's descriptors."""
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
_LOCAL = "localhost,127.0.0.1,::1"
PROXY_ENVIRONMENT = {
    "http_proxy": _PROXY,
    "https_proxy": _PROXY,
    "HTTP_PROXY": _PROXY,
    "HTTPS_PROXY": _PROXY,
    "no_proxy": _LOCAL,
    "NO_PROXY": _LOCAL,
    "NODE_USE_ENV_PROXY": "1",
    "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
}
"""Environment variables that tell programs in a box about the proxy."""

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


def ports_of(egress: Egress) -> list[int]:
    """List the ports of 127.0.0.1 that listen in the box. Raises SandboxError for a malformed rule or route."""
    _parsed(egress)
    return [*([PROXY_PORT] if egress.allow else []), *egress.routes]


class Gate:
    """Serves the connections of one box until ``close``. Raises SandboxError as ``ports_of`` does.

    Connections come from listening sockets that the box hands over (``listen``), or one by one (``accept``); in that
    case ``shut`` makes the box refuse further ones.
    """

    def __init__(self, egress: Egress, note: Note, shut: Callable[[], None] = lambda: None) -> None:
        rules, routes = _parsed(egress)
        budget = Budget(egress.max_bytes)
        self._serves: dict[int, Serve] = {}
        if rules:
            self._serves[PROXY_PORT] = Proxy(rules, budget, note, private=egress.private).serve
        self._serves |= {port: _route(port, place, budget, note) for port, place in routes.items()}
        self._left = self._most = egress.max_connections
        self._note = note
        self._shut = shut
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self, taking: socket.socket) -> None:
        """Receive the box's listening sockets from ``taking``, in the order of ``ports_of``, and serve them.

        Call after the box's first answer. Raises SandboxError if this process may open no more files.
        """
        taking.setblocking(False)
        fds = socket.recv_fds(taking, 64, len(self._serves))[1] if self._serves else []
        listeners = [socket.socket(fileno=fd) for fd in fds]
        if len(listeners) < len(self._serves):  # the kernel drops descriptors that there is no room for
            for listener in listeners:
                listener.close()
            raise SandboxError("a box with a network cannot be made: this process may open no more files")
        for serve, listener in zip(self._serves.values(), listeners, strict=True):
            self._servers.append(await asyncio.start_server(self._tracked(serve), sock=listener, limit=32 << 10))

    def accept(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; close it if nothing is served on its port."""
        serve = self._serves.get(port)
        if serve is None:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._tracked(serve)(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._shut()
        for task in self._connections:
            task.cancel()

    def _tracked(self, serve: Serve) -> Serve:
        async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._left -= 1
            if self._left < 0:
                writer.close()
                reason = f"the box has opened the {self._most} connections that it may"
                self._note(_entry("", "", 0, "", reason))
                self.close()  # from now on the box's kernel refuses connections, so a flood costs the host nothing
                return
            if len(self._connections) >= MAX_OPEN:
                writer.close()
                self._note(_entry("", "", 0, "", f"more than {MAX_OPEN} connections at once"))
                return
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await serve(reader, writer)
            finally:
                self._connections.discard(task)
                writer.close()

        return tracked


def _parsed(egress: Egress) -> tuple[list[Any], Mapping[int, tuple[str, int]]]:
    try:
        rules, routes = [parse_rule(text) for text in egress.allow], {}
        for port, place in egress.routes.items():
            host, target = split_host(place)
            if target is None or not 0 < port < 65536 or port == PROXY_PORT:
                raise ValueError
            routes[port] = (host, target)
    except ValueError as error:
        raise SandboxError(
            str(error) or f"egress route {port} -> {place!r}: expected a free port of the box and HOST:PORT"
        ) from None
    return rules, routes


def _route(port: int, place: tuple[str, int], budget: Budget, note: Note) -> Serve:
    """Return a server that connects to one service. Any address is allowed: the creator of the box chose it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down, reason = Meter(budget), Meter(budget), ""
        try:
            far = await asyncio.open_connection(*place)
            try:
                await tunnel((reader, writer), far, up, down)
            finally:
                far[1].close()
        except Spent:
            reason = "the box has moved all the bytes that it may"
        except OSError as error:
            reason = f"{place[0]}:{place[1]} cannot be reached: {error}"
        finally:  # also if the box is closed meanwhile
            note(_entry("route", place[0], place[1], f":{port}", reason, up.bytes, down.bytes))

    return serve


def _entry(method: str, host: str, port: int, path: str, reason: str, up: int = 0, down: int = 0) -> dict[str, Any]:
    return {"method": method, "host": host, "port": port, "path": path, "reason": reason, "up": up, "down": down}
