"""The host's end of a box's control socket: requests out, replies matched by number, everything checked."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from typing import Any, cast

from .frames import Decoder, FrameError, encode
from .protocol import SandboxError

Reply = tuple[dict[str, Any], bytes]


class Channel(asyncio.Protocol):
    """One request/reply connection; any number of requests may be under way."""

    def __init__(self, max_body: int) -> None:
        self._decoder = Decoder(max_body)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._numbers = itertools.count(1)
        self._transport: asyncio.WriteTransport | None = None
        self._reading: asyncio.ReadTransport | None = None
        self._failure: SandboxError | None = None

    @staticmethod
    async def open(sock: socket.socket, max_body: int = 1 << 28) -> Channel:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: Channel(max_body), sock=sock)
        return channel

    @staticmethod
    async def open_pipes(source: int, sink: int, max_body: int = 1 << 28) -> Channel:
        """Over two pipes, which belong to the channel from now on."""
        loop = asyncio.get_running_loop()
        channel = Channel(max_body)
        # A fork of a box may still answer a request that was made of its parent: no number of ours may be one of its.
        channel._numbers = itertools.count(secrets.randbelow(1 << 48) << 4)
        reading, _ = await loop.connect_read_pipe(lambda: channel, os.fdopen(source, "rb", 0))
        writing, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(sink, "wb", 0))
        channel._reading, channel._transport = reading, writing
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._decoder.feed(data):
                number = header.get("id")
                if "error" in header:
                    self._fail(SandboxError(f"sandbox {header['error']}: {str(header.get('message'))[:2000]}"))
                    return
                future = self._waiting.pop(number, None) if isinstance(number, int) else None
                if future is not None and not future.done():
                    future.set_result((header, body))
        except FrameError as error:
            self._fail(SandboxError(f"sandbox: its first process sent a bad frame: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(SandboxError("sandbox: the connection to its first process ended"))

    async def request(self, header: dict[str, Any], body: bytes = b"", *, patience: float = 120.0) -> Reply:
        """One round trip. Raises the OSError that the box reports, SandboxError where the box itself failed.

        ``patience``: seconds until a box that does not answer counts as broken.
        """
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(encode({"id": number, **header}, body))
        handle = asyncio.get_running_loop().call_later(patience, self._expire, number, patience)
        try:
            reply, data = await future
        except asyncio.CancelledError:
            if self._failure is None:  # whoever asked is gone: end the command, if it is one
                self._transport.write(encode({"id": 0, "op": "cancel", "target": number}))
            raise
        finally:
            handle.cancel()
            self._waiting.pop(number, None)
        code = reply.get("errno")
        if isinstance(code, int):
            path = reply.get("path")
            message = str(reply.get("message") or os.strerror(code))[:2000]
            raise OSError(code, message, path) if isinstance(path, str) else OSError(code, message)
        return reply, data

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        if self._reading is not None:
            self._reading.close()

    def _expire(self, number: int, patience: float) -> None:
        if number in self._waiting:
            self._fail(SandboxError(f"sandbox: no answer from its first process within {patience:.0f} s"))

    def _fail(self, error: SandboxError) -> None:
        if self._failure is None:
            self._failure = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._failure)
        self.close()
