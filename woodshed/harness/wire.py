"""An httpx transport: HTTP/1.1 over plain sockets for many concurrent short requests to one server.

httpx's own pool scans every open connection for every request, which costs several milliseconds of CPU per call at a
hundred concurrent episodes. This transport keeps a stack of idle connections per server and parses with httptools. It
reads each response whole, so it does not stream, and it speaks ``http://`` only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any, cast

import httptools
import httpx

IDLE_SECONDS = 4.0
"""Less than the 5 s after which uvicorn closes an idle connection, so that none is closed during a request."""

Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class Connection(asyncio.Protocol):
    """One socket, one request at a time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0
        self.closed = False
        self._parser: Any = None
        self._answer: asyncio.Future[Answer] | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._to_end = False

    async def ask(self, head: bytes, body: bytes) -> Answer:
        """Send a request and wait for the whole response. Raises httpx.TransportError."""
        assert self.transport is not None
        if self.closed:
            raise httpx.ConnectError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._body, self._to_end = [], [], False
        self._answer = self.loop.create_future()
        self.transport.write(head + body)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def close(self) -> None:
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not inherit from it

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(httpx.RemoteProtocolError(f"not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._to_end and error is None:
            self.on_message_complete()
        self._fail(httpx.ReadError(f"the server closed the connection{f': {error}' if error else ''}"))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        framed = {name.lower() for name, _ in self._headers} & {b"content-length", b"transfer-encoding"}
        self._to_end = not framed and self._parser.get_status_code() not in (204, 304)

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), self._headers, b"".join(self._body)))


class WireTransport(httpx.AsyncBaseTransport):
    """One connection per concurrent request. Use as ``httpx.AsyncClient(mounts={"http://": WireTransport()})``."""

    def __init__(self) -> None:
        self._idle: defaultdict[tuple[str, int], list[Connection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        timeouts = request.extensions.get("timeout", {})
        connection = await self._connect((url.host, url.port or 80), timeouts.get("connect"))
        lines = [b"%s %s HTTP/1.1" % (request.method.encode(), url.raw_path)]
        lines += [b"%s: %s" % header for header in request.headers.raw]
        body = await request.aread()
        try:
            async with asyncio.timeout(timeouts.get("read")):
                status, headers, content = await connection.ask(b"\r\n".join(lines) + b"\r\n\r\n", body)
        except TimeoutError:
            raise httpx.ReadTimeout("no answer in time", request=request) from None
        if connection.closed:
            connection.close()
        else:
            connection.idle_since = connection.loop.time()
            self._idle[url.host, url.port or 80].append(connection)
        return httpx.Response(status, headers=headers, content=content, request=request)

    async def _connect(self, server: tuple[str, int], timeout: float | None) -> Connection:
        loop = asyncio.get_running_loop()
        idle = self._idle[server]
        while idle:
            connection = idle.pop()
            if not connection.closed and connection.loop is loop and loop.time() - connection.idle_since < IDLE_SECONDS:
                return connection
            if connection.loop is loop:
                connection.close()
        try:
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(Connection, *server)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection to {server[0]}:{server[1]}") from None
        except OSError as error:
            raise httpx.ConnectError(f"no connection to {server[0]}:{server[1]}: {error}") from None
        return connection

    async def aclose(self) -> None:
        for idle in self._idle.values():
            for connection in idle:
                if connection.loop is asyncio.get_running_loop():
                    connection.close()
        self._idle.clear()
