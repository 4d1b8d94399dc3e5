"""Request bodies, responses and streamed replies (server-sent events) over plain ASGI."""

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
        """Call ``start``, unless another writer has already done so."""
        async with self._beginning:
            if not self.started:
                await self.start(status, headers)

    async def part(self, body: bytes, *, end: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not end})

    async def whole(self, status: int, body: bytes) -> None:
        """Send a JSON response; with status 429 or 503 it has a ``retry-after`` header."""
        headers = [_JSON, (b"content-length", str(len(body)).encode())]
        await self.start(status, headers + [(b"retry-after", b"1")] * (status in (429, 503)))
        await self.part(body, end=True)


async def read_body(receive: Callable[[], Awaitable[Any]], limit: int) -> list[bytes] | None:
    """Read the body in the pieces in which it arrives, since joining a large one takes milliseconds; None if the client
    disconnected. Raises ApiError 413 if it is too large."""
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
"""Characters sent at a time once a reply is complete."""
_NOTICEABLE = 0.001
"""If parsing the text so far takes more processor time than this (seconds), the next parse is delayed."""
_REST = 20
"""Length of that delay, in multiples of the time spent."""


class LiveReply:
    """Listens to a turn and sends the text that is safe to send, in its own task.

    The status is sent with the first text, so that an earlier error gets its own status. Several choices share
    ``send``.
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
        """Send the rest of the reply after it was recorded; all of it if it was recorded for an earlier request."""
        await self.halt()
        await self._begin()
        # in pieces, each of which waits until the network accepts it: a piece not accepted was not delivered
        for field, text in self._unsent.rest(answer.reply):
            for start in range(0, len(text), _PIECE):
                await self._send.part(self._stream.more([(field, text[start : start + _PIECE])]))
        await self._send.part(self._stream.last(answer, []))

    async def halt(self) -> None:
        """Stop writing, after the current write has been completed."""
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
            if spent > _NOTICEABLE:
                # each parse reads the whole reply again: parse long replies rarely, so that others are not blocked
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), _REST * spent)

    async def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            await self._send.begin(200, _EVENTS)
            await self._send.part(self._stream.first(self._prompt_tokens))
