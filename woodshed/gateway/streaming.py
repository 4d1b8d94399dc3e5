"""A reply that is written while it is sampled, as server-sent events.

Plain ASGI: a body in, a response out.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Send

from woodshed.gateway.dialects.base import ReplyStream

from .errors import ApiError
from .messages import Message
from .turns import Answer
from .watch import Parse, Unsent

_JSON = (b"content-type", b"application/json")


class Sender:
    """Sends a response and counts its status."""

    def __init__(self, send: Send, counts: Counter[int]) -> None:
        self._send = send
        self._counts = counts
        self.started = False
        self._beginning = asyncio.Lock()

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._counts[status] += 1
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """``start`` once, of several writers."""
        async with self._beginning:
            if not self.started:
                await self.start(status, headers)

    async def part(self, body: bytes, *, end: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not end})

    async def whole(self, status: int, body: bytes) -> None:
        """A JSON response; one that says "later" also says when."""
        headers = [_JSON, (b"content-length", str(len(body)).encode())]
        await self.start(status, headers + [(b"retry-after", b"1")] * (status in (429, 503)))
        await self.part(body, end=True)


async def read_body(receive: Callable[[], Awaitable[Any]], limit: int) -> list[bytes] | None:
    """The body in the pieces in which it came (to copy a large one together takes milliseconds), or None where the
    client left. Raises ApiError 413 for one that is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise ApiError(413, "request_too_large", f"the request body is larger than {limit} bytes")
        if not message.get("more_body", False):
            return parts


_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
_PIECE = 2_048
_NOTICEABLE = 0.001
"""Processor seconds of one look at the text from which on the next one has to wait."""
_REST = 20
"""So many times as long."""


class LiveReply:
    """Listens to a turn and sends what is safe to send, in a task of its own.

    The status is sent with the first text, so that an early error is an ordinary one. Several choices share ``send``.
    """

    def __init__(self, stream: ReplyStream, parse: Parse, send: Sender) -> None:
        self._stream = stream
        self._unsent = Unsent(parse)
        self._send = send
        self._latest = ""
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._settled = self._begun = False
        self._prompt_tokens = 0
        self._writer = asyncio.ensure_future(self._write())

    def planned(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens

    def text(self, text: str) -> None:
        self._latest = text
        self._news.set()

    def settle(self, reply: Message) -> None:
        self._settled = True
        self._unsent.settle(reply)

    async def end(self, answer: Answer) -> None:
        """The rest of the reply, once it is recorded; all of it where it was recorded before."""
        await self.halt()
        await self._begin()
        # In pieces: each waits until the network has room, and what it has no room for was not delivered.
        for field, text in self._unsent.rest(answer.reply):
            for start in range(0, len(text), _PIECE):
                await self._send.part(self._stream.more([(field, text[start : start + _PIECE])]))
        await self._send.part(self._stream.last(answer, []))

    async def halt(self) -> None:
        """Nothing is written any more; what is being sent goes out whole before."""
        self._settled = True
        self._news.set()
        self._ended.set()
        await self._writer

    def stop(self) -> None:
        self._writer.cancel()

    async def _write(self) -> None:
        while await self._news.wait() and not self._settled:
            self._news.clear()
            began = time.thread_time()
            deltas = self._unsent.more(self._latest)
            spent = time.thread_time() - began
            if deltas:
                await self._begin()
                await self._send.part(self._stream.more(deltas))
            if spent > _NOTICEABLE:  # all of a long reply is read again: seldom, so that other requests have their turn
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _REST * spent)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._send.begin(200, _EVENTS)
            await self._send.part(self._stream.first(self._prompt_tokens))
