"""The forward proxy of one box: HTTP and CONNECT to the hosts that its rules allow; the rest is refused and noted.

Requests are parsed strictly: what two programs could read differently is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .relay import Budget, Meter, Spent, Stream, copy, tunnel
from .rules import Rule, allowed, reachable, split_host

MAX_HEAD = 32 << 10
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[!-~]+")
# Header fields that are not forwarded: they concern client and proxy only, or the proxy sets them itself.
_HOP = frozenset(
    [
        "host",
        "connection",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "content-length",
    ]
)


class BadRequest(ValueError):
    """The request is malformed or of a kind that this proxy does not support; ``status``: status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Request:
    """A parsed request. ``head`` goes to the server (empty for CONNECT), followed by ``length`` bytes of body."""

    method: str
    host: str
    port: int
    path: str
    head: bytes = b""
    length: int = 0


def parse_request(data: bytes) -> Request:
    """Parse the head of a request; ``data`` ends with the empty line. Raises BadRequest."""
    try:
        first, *lines = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        method, target, version = first.split(" ")
    except ValueError:
        raise BadRequest(400, "the request line is malformed") from None
    if not _TOKEN.fullmatch(method) or not _TARGET.fullmatch(target) or version not in ("HTTP/1.0", "HTTP/1.1"):
        raise BadRequest(400, "the request line is malformed")
    if method == "CONNECT":
        host, port = _place(target)
        if port is None:
            raise BadRequest(400, "CONNECT needs HOST:PORT")
        return Request(method, host, port, "")
    url = urlsplit(target)
    if url.scheme.lower() != "http" or "@" in url.netloc:
        raise BadRequest(400, "this is a proxy: it takes CONNECT and http:// URLs without a password")
    host, port = _place(url.netloc)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    fields = [_field(line) for line in lines]
    length = _length(fields)
    kept = [f"{name}: {value}" for name, value in fields if name.lower() not in _HOP]
    if length or method in ("POST", "PUT", "PATCH"):
        kept.append(f"Content-Length: {length}")
    # One request per connection: a second one could name another host.
    head = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", *kept, "Connection: close", "", ""]
    return Request(method, host, port or 80, path, "\r\n".join(head).encode("latin-1"), length)


def answer(status: int, phrase: str, text: str = "") -> bytes:
    """Return a complete plain-text response that closes the connection."""
    body = (text + "\n").encode() if text else b""
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def _place(netloc: str) -> tuple[str, int | None]:
    try:
        return split_host(netloc)
    except ValueError:
        raise BadRequest(400, "the host is malformed") from None


def _field(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not _TOKEN.fullmatch(name) or any(c in value for c in "\r\n\0"):
        raise BadRequest(400, "a header field is malformed")
    return name, value.strip(" \t")


def _length(fields: list[tuple[str, str]]) -> int:
    if any(name.lower() == "transfer-encoding" for name, _ in fields):
        raise BadRequest(411, "send the body with Content-Length")
    lengths = {value for name, value in fields if name.lower() == "content-length"}
    if not lengths:
        return 0
    (text, *others) = lengths
    if others or not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise BadRequest(400, "Content-Length is malformed")
    return int(text)


MAX_CONNECTIONS = 64
_HEAD_SECONDS, _CONNECT_SECONDS = 30.0, 15.0
_LOGGED = 500

Note = Callable[[dict[str, Any]], None]
"""Callback that gets the outcome of each request: ``method``, ``host``, ``port``, ``path``, ``status``, ``reason``,
``up`` and ``down`` (bytes), ``seconds``."""


class Refused(Exception):
    """The request is refused with an HTTP status."""

    def __init__(self, status: int, phrase: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.phrase = status, phrase


class Proxy:
    """Serves connections that come from a box. ``private``: names may stand for addresses that are not public."""

    def __init__(self, rules: Sequence[Rule], budget: Budget, note: Note, *, private: bool = False) -> None:
        self._rules, self._budget, self._note, self._private = tuple(rules), budget, note, private
        self._open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        started = time.monotonic()
        up, down = Meter(self._budget), Meter(self._budget)
        entry: dict[str, Any] = {"method": "", "host": "", "port": 0, "path": "", "status": 0, "reason": ""}
        self._open += 1
        try:
            await self._handle((reader, writer), entry, up, down)
        except Refused as refusal:
            entry |= {"status": refusal.status, "reason": str(refusal)}
            with contextlib.suppress(ConnectionError):
                writer.write(answer(refusal.status, refusal.phrase, f"woodshed: {refusal}"))
                await writer.drain()
        except Spent:
            entry["reason"] = "the box has moved all the bytes that it may"
        except (OSError, ValueError) as error:  # ValueError: a line of the response is too long
            entry["reason"] = f"broken off: {error or type(error).__name__}"
        finally:
            self._open -= 1
            writer.close()
            self._note(entry | {"up": up.bytes, "down": down.bytes, "seconds": round(time.monotonic() - started, 3)})

    async def _handle(self, near: Stream, entry: dict[str, Any], up: Meter, down: Meter) -> None:
        if self._open > MAX_CONNECTIONS:
            raise Refused(503, "Service Unavailable", f"more than {MAX_CONNECTIONS} connections at once")
        request = await self._request(near[0])
        entry |= {"method": request.method, "host": request.host, "port": request.port, "path": request.path[:_LOGGED]}
        if not allowed(self._rules, request.host, request.port):
            raise Refused(403, "Forbidden", f"{request.host}:{request.port} is not a host that this box may reach")
        far = await self._connect(request.host, request.port)
        try:
            if request.method == "CONNECT":
                near[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                entry["status"] = 200
                await tunnel(near, far, up, down)
                return
            far[1].write(request.head)
            sending = asyncio.create_task(copy(near[0], far[1], up, request.length))
            try:
                entry["status"] = await _status(far[0], near[1], down)
                await copy(far[0], near[1], down)
            finally:
                sending.cancel()  # the server answered and closed: nobody reads the rest of the body
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            far[1].close()

    async def _request(self, reader: asyncio.StreamReader) -> Request:
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                return parse_request(await reader.readuntil(b"\r\n\r\n"))
        except BadRequest as error:
            raise Refused(error.status, "Bad Request", str(error)) from None
        except asyncio.LimitOverrunError:
            raise Refused(431, "Request Header Fields Too Large", "the head of the request is too long") from None
        except (asyncio.IncompleteReadError, TimeoutError):
            raise Refused(408, "Request Timeout", "the request ended before its empty line") from None

    async def _connect(self, host: str, port: int) -> Stream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = reachable([str(f[4][0]) for f in found], host=host, private=self._private)
                if not addresses:
                    raise Refused(403, "Forbidden", f"{host} stands for an address that is not public")
                return await _first(addresses, port)  # the checked address: the name could resolve differently now
        except TimeoutError:
            raise Refused(504, "Gateway Timeout", f"{host}:{port} does not answer") from None
        except OSError as error:
            raise Refused(502, "Bad Gateway", f"{host}:{port} cannot be reached: {error}") from None


async def _first(addresses: Sequence[str], port: int) -> Stream:
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return await asyncio.open_connection(address, port)
    return await asyncio.open_connection(addresses[-1], port)


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter) -> int:
    """Forward the response's first line; return its status."""
    line = await reader.readline()
    meter.add(len(line))
    writer.write(line)
    parts = line.split(b" ", 2)
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0
