"""``POST /generate`` of an engine server, as plain ASGI because every turn of a run calls it."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from starlette.types import Receive, Scope, Send

from woodshed.cluster.service import AdminKey, bearer
from woodshed.engine.local import LocalEngine
from woodshed.engine.protocol import Completion, EngineBusy, EngineClosed, EngineError, TokenReport

from . import wire

LIVE_SECONDS = 0.01
BULK_SECONDS = 0.05
"""Interval at which tokens are sent: LIVE_SECONDS for live streaming, else BULK_SECONDS. In the latter case they are
sent before the end only so that they are not lost with this engine."""
ALIVE_SECONDS = 1.0
"""After this time without a token the client gets an ALIVE frame."""


class Generate:
    """Samples for a request and streams the tokens. A client that disconnects stops the engine's work."""

    def __init__(self, engine: LocalEngine, key: AdminKey, *, max_body: int) -> None:
        self.engine, self.key, self.max_body = engine, key, max_body
        self._wanted: set[str] = set()

    def stop(self, name: str) -> None:
        """End a request at its next token; its completion is what it has sampled until then."""
        self._wanted.discard(name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        if not self.key.matches(bearer(dict(scope["headers"]).get(b"authorization"))):
            await reply.refuse(401, EngineError("this route needs the engine's admin key"))
            return
        try:
            body = await self._body(receive)
            if body is None:
                return
            ask = wire.decode_ask(body)
        except ValueError as error:
            await reply.refuse(400, error)
            return
        if self.engine.version < ask.least:
            behind = f"the engine has version {self.engine.version} of the weights, not yet {ask.least}"
            await reply.refuse(503, EngineClosed(behind))
            return
        left = asyncio.ensure_future(receive())
        sampled: list[tuple[int, float, int]] = []
        reports: list[TokenReport] = []

        def on_token(token: int, logprob: float, version: int) -> bool:
            sampled.append((token, logprob, version))
            return ask.name not in self._wanted

        self._wanted.add(ask.name)
        work = asyncio.ensure_future(
            self.engine.generate(
                ask.tokens, ask.sampling, session=ask.session, on_token=on_token, on_report=reports.append
            )
        )
        try:
            await self._pump(work, left, sampled, reports, reply, LIVE_SECONDS if ask.live else BULK_SECONDS)
        finally:
            self._wanted.discard(ask.name)
            left.cancel()
            work.cancel()

    async def _pump(
        self,
        work: asyncio.Future[Completion],
        left: asyncio.Future[Any],
        sampled: list[tuple[int, float, int]],
        reports: list[TokenReport],
        reply: _Reply,
        interval: float,
    ) -> None:
        heard = time.monotonic()
        while not left.done():
            await asyncio.wait((work, left), timeout=interval, return_when=asyncio.FIRST_COMPLETED)
            done = work.done()  # read before `sampled`, so that no token can be added after the last look at it
            if done and work.exception() is not None:
                await reply.fail(_frames(sampled, reports), work.exception())
                return
            if sampled:
                await reply.part(_frames(sampled, reports))
                heard = time.monotonic()
            elif time.monotonic() - heard > ALIVE_SECONDS:
                heard = time.monotonic()
                if self.engine.stats()["iteration_seconds"] < wire.STUCK_SECONDS:
                    await reply.part(wire.frame(wire.ALIVE))
            if done:
                await reply.part(wire.encode_end(work.result()), end=True)
                return

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None if the client disconnected. Raises ValueError if it is too large."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.max_body:
                raise ValueError(f"the request body is larger than {self.max_body} bytes (max_body)")
            if not message.get("more_body", False):
                return bytes(body)


class _Reply:
    """One HTTP response. An error before the first frame is sent as an HTTP status, after it as a frame."""

    def __init__(self, send: Send) -> None:
        self._send, self._started = send, False

    async def part(self, data: bytes, *, end: bool = False) -> None:
        if not self._started:
            await self._start(200, b"application/octet-stream")
        await self._send({"type": "http.response.body", "body": data, "more_body": not end})

    async def fail(self, tokens: bytes, error: BaseException | None) -> None:
        """Send the frames of the remaining tokens, then the error."""
        assert error is not None
        if not self._started and not tokens:
            await self.refuse(_status(error), error)
            return
        await self.part(tokens + wire.frame(wire.ERROR, json.dumps(wire.error_body(error)).encode()), end=True)

    async def refuse(self, status: int, error: BaseException) -> None:
        body = json.dumps({"error": wire.error_body(error)}).encode()
        await self._start(status, b"application/json")
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, status: int, kind: bytes) -> None:
        self._started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})


def _frames(sampled: list[tuple[int, float, int]], reports: list[TokenReport]) -> bytes:
    """Remove all tokens and their reports from the lists and encode them. The engine's thread may append at the same
    time: each report right before its token."""
    count = len(sampled)
    if not count:
        return b""
    before = wire.encode_reports(reports[:count]) if reports else b""
    frames = before + wire.encode_tokens(sampled[:count])
    del sampled[:count], reports[:count]
    return frames


def _status(error: BaseException) -> int:
    if isinstance(error, ValueError):
        return 400
    return 429 if isinstance(error, EngineBusy) else 503 if isinstance(error, EngineClosed) else 500
