"""The host's end of a box's control socket: sends requests, matches replies by number, checks all input."""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest.frames import Decoder, FrameError, encode
from woodshed.sandbox.protocol import BoxGone, SandboxError

if TYPE_CHECKING:
    from woodshed.sandbox.backends.gvisor.connections import Connections

Reply = tuple[dict[str, Any], bytes]
T = TypeVar("T")


class Channel(asyncio.Protocol):
    """One request/reply connection; any number of requests may be under way."""

    def __init__(self, max_body: int) -> None:
        self._decoder = Decoder(max_body)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._expiry: dict[int, asyncio.TimerHandle] = {}
        # A fork may still answer a request made to its parent, so our numbers must differ from its.
        self._numbers = itertools.count(secrets.randbelow(1 << 48) << 4)
        self._transport: asyncio.WriteTransport | None = None
        self._reading: asyncio.ReadTransport | None = None
        self._failure: SandboxError | BoxGone | None = None
        self._answered = False
        self._held: list[bytes] | None = None
        self.connections: Connections | None = None
        self.paused = False
        self._resumed = -math.inf

    @staticmethod
    async def open(sock: socket.socket, max_body: int = 1 << 28) -> Channel:
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: Channel(max_body), sock=sock)
        return channel

    @staticmethod
    async def open_pipes(source: int, sink: int, max_body: int = 1 << 28) -> Channel:
        """Open a channel over two pipes, which it then owns."""
        loop = asyncio.get_running_loop()
        channel = Channel(max_body)
        # The event loop closes a pipe, also if this is cancelled: asyncio closes the file, uvloop the descriptor. If
        # the file closed it again later, it would close what has the same number by then.
        owned = isinstance(loop, asyncio.BaseEventLoop)
        try:
            channel._reading, _ = await loop.connect_read_pipe(
                lambda: channel, os.fdopen(source, "rb", 0, closefd=owned)
            )
        except BaseException:
            os.close(sink)
            raise
        try:
            channel._transport, _ = await loop.connect_write_pipe(
                asyncio.BaseProtocol, os.fdopen(sink, "wb", 0, closefd=owned)
            )
        except BaseException:
            channel._reading.close()
            raise
        return channel

    @staticmethod
    async def open_with(start: Callable[[int, int], Awaitable[T]]) -> tuple[T, Channel]:
        """Start a process with ``start(their_in, their_out)``, the far ends of two pipes; return it and the channel.

        The channel is opened first, so that a caller that is cancelled meanwhile leaves no process without an owner.
        """
        (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
        try:
            channel = await Channel.open_pipes(our_in, our_out)
            try:
                return await start(their_in, their_out), channel
            except BaseException:
                channel.close()
                raise
        finally:
            os.close(their_in)
            os.close(their_out)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for header, body in self._decoder.feed(data):
                number = header.get("id")
                if "net" in header and self.connections is not None:
                    self.connections.take(header, body)
                    continue
                if "error" in header:
                    self._fail(self._reported(f"{header['error']}: {str(header.get('message'))[:2000]}"))
                    return
                self._answered = True
                future = self._waiting.pop(number, None) if isinstance(number, int) else None
                if future is not None and not future.done():
                    future.set_result((header, body))
        except FrameError as error:
            self._fail(BoxGone(errno.EPROTO, f"the first process of the box sent a bad frame: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(BoxGone(errno.EPIPE, "the first process of the box ended"))

    def _reported(self, text: str) -> SandboxError | BoxGone:
        """Create the error that a box reports: SandboxError before its first answer (nothing untrusted has run yet)."""
        return BoxGone(errno.EPIPE, f"the box ended: {text}") if self._answered else SandboxError(f"sandbox {text}")

    async def request(self, header: dict[str, Any], body: bytes = b"", *, patience: float = 120.0) -> Reply:
        """Make one round trip.

        Raises the BoxError that the box reports, BoxGone if it ended or is silent, and SandboxError if its first
        process found that the machine lacks something. ``patience``: seconds until a silent box counts as broken.
        """
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        number = next(self._numbers)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._transport.write(encode({"id": number, **header}, body))
        self._expiry[number] = asyncio.get_running_loop().call_later(patience, self._expire, number, patience)
        try:
            reply, data = await future
        except asyncio.CancelledError:
            self.send({"op": "cancel", "target": number})  # nobody waits any more: end the command, if it is one
            raise
        finally:
            self._expiry.pop(number).cancel()
            self._waiting.pop(number, None)
        code = reply.get("errno")
        if isinstance(code, int):
            path = reply.get("path")
            message = str(reply.get("message") or os.strerror(code))[:2000]
            if reply.get("host") is True:
                raise SandboxError(f"this machine lacks what a box needs: {message}")
            raise box_error(code, message, path if isinstance(path, str) else None)
        return reply, data

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame that gets no answer; while the channel is held, the frame waits."""
        frame = encode({"id": 0, **header}, body)
        if self._held is not None:
            self._held.append(frame)
        elif self._failure is None and self._transport is not None:
            self._transport.write(frame)

    def hold(self) -> None:
        """Send only requests from now on; frames of ``send`` wait for ``resume``."""
        self._held = []

    def resume(self) -> None:
        held, self._held = self._held, None
        if held and self._failure is None and self._transport is not None:
            self._transport.write(b"".join(held))

    def pause(self) -> None:
        """Expect no answers from the box until ``go_on``; its silence is not counted meanwhile."""
        self.paused = True

    def go_on(self) -> None:
        self.paused, self._resumed = False, asyncio.get_running_loop().time()

    def close(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        if self._reading is not None:
            self._reading.close()

    def _expire(self, number: int, patience: float) -> None:
        if number not in self._waiting:
            return
        loop = asyncio.get_running_loop()
        if self.paused or loop.time() - self._resumed < patience:  # the time restarts when the box resumes
            self._expiry[number] = loop.call_later(patience, self._expire, number, patience)
        else:
            self._fail(BoxGone(errno.ETIMEDOUT, f"no answer from the first process of the box within {patience:.0f} s"))

    def _fail(self, error: SandboxError | BoxGone) -> None:
        if self._failure is None:
            self._failure = error
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._failure)
        self.close()
        if self.connections is not None:
            self.connections.lost()
