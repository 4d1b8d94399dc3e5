"""``POST /v1/chat/completions`` as plain ASGI: the one route that is called tens of thousands of times a run."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from .dialects.openai_chat import ChatRequest, parse_request
from .dialects.openai_reply import DONE, Stream, completion_body
from .errors import ApiError
from .keys import bearer
from .messages import Message
from .trajectories import OpenTrajectory, Trajectories
from .turns import Turns

log = logging.getLogger(__name__)
_JSON = (b"content-type", b"application/json")
_EVENTS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]


class ChatRoute:
    """Reads a request, runs a turn, writes the reply. A client that leaves stops the engine's work for it."""

    def __init__(self, turns: Turns, trajectories: Trajectories, *, model: str, max_body: int) -> None:
        self.turns = turns
        self.trajectories = trajectories
        self.model = model
        self.max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        left: asyncio.Future[AsgiMessage] | None = None
        sender = _Counted(send, self.turns.metrics.responses)
        try:
            trajectory = self.trajectories.of_key(bearer(dict(scope["headers"]).get(b"authorization")))
            body = await read_body(receive, self.max_body)
            if body is None:
                return
            left = asyncio.ensure_future(receive())
            left.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
            request = parse_request(body)
            if request.stream:
                await self._stream(trajectory, request, sender)
            else:
                answer = await self.turns.run(trajectory, request)
                left.cancel()
                reply = completion_body(answer, self.model, self.tokenizer, logprobs=request.logprobs)
                await respond(sender, 200, reply)
        except ApiError as error:
            await _fail(sender, error)
        except asyncio.CancelledError:
            if left is None or not left.done() or left.cancelled():
                raise
        except Exception as error:
            log.exception("chat completion failed")
            await _fail(sender, ApiError(500, "internal_error", f"{type(error).__name__}: {error}"))
        finally:
            if left is not None:
                left.cancel()

    @property
    def tokenizer(self) -> Any:
        return self.turns.rendering.tokenizer

    async def _stream(self, trajectory: OpenTrajectory, request: ChatRequest, send: _Counted) -> None:
        """Server-sent events. The status is sent with the first text, so that an early error is an ordinary one."""
        stream = Stream(self.model, self.turns.parser(request), include_usage=request.include_usage)
        news, latest, ended = asyncio.Event(), "", False

        def on_text(text: str) -> None:
            nonlocal latest
            latest = text
            news.set()

        def settle(reply: Message) -> None:
            nonlocal ended
            ended = True
            stream.settle(reply)

        async def begin() -> None:
            if not send.started:
                await send.start(200, _EVENTS)
                await send.part(stream.first())

        async def write() -> None:
            while await news.wait() and not ended:
                news.clear()
                if chunks := stream.more(latest):
                    await begin()
                    await send.part(chunks)

        writer = asyncio.ensure_future(write())
        try:
            answer = await self.turns.run(trajectory, request, on_text, settle)
            news.set()
            await writer
            await begin()
            await send.part(stream.last(answer, self.tokenizer, logprobs=request.logprobs), end=True)
        finally:
            writer.cancel()


class _Counted:
    """Sends a response and counts its status."""

    def __init__(self, send: Send, counts: Any) -> None:
        self._send = send
        self._counts = counts
        self.started = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._counts[status] += 1
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def part(self, body: bytes, *, end: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": not end})


async def respond(send: _Counted, status: int, body: bytes) -> None:
    await send.start(status, [_JSON, (b"content-length", str(len(body)).encode())])
    await send.part(body, end=True)


async def _fail(send: _Counted, error: ApiError) -> None:
    body = json.dumps(error.body()).encode()
    if send.started:
        await send.part(b"data: " + body + b"\n\n" + DONE, end=True)
    else:
        await respond(send, error.status, body)


async def read_body(receive: Callable[[], Awaitable[Any]], limit: int) -> bytes | None:
    """The whole body, or None where the client left. Raises ApiError 413 for one that is too large."""
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
            return parts[0] if len(parts) == 1 else b"".join(parts)
