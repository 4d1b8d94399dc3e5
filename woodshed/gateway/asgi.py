"""Plain ASGI: a body in, a response out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Send

from .errors import ApiError

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
