"""The routes of a dialect as plain ASGI: they are called tens of thousands of times a run.

Several replies to one request (``n``): each is a turn of its own, and all of them are given or none.

A request with n choices is recorded as n equal requests at the same time are: the first extends the segment, the others
are segments that share its tokens up to their reply as context, and the client goes on from whichever it likes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from starlette.types import Message as AsgiMessage
from starlette.types import Receive, Scope, Send

from woodshed.gateway.dialects.base import CountingDialect, Dialect

from .errors import ApiError
from .keys import client_key
from .request import Request
from .streaming import LiveReply, Sender, read_body
from .trajectories import OpenTrajectory, Trajectories
from .turns import Answer, Listener, Turns


async def run_choices(
    turns: Turns, trajectory: OpenTrajectory, request: Request, listeners: Sequence[Listener] = ()
) -> list[Answer]:
    """One answer for each choice, in their order; ``listeners`` are one for each, or none.

    Nothing is recorded before all of them are sampled. An error of one, and a client that leaves, ends them all; what
    was sampled until then counts as for any reply that nobody waited for. Raises ApiError.
    """
    count = request.choices
    heard: Sequence[Listener | None] = listeners or [None] * count
    if count == 1:
        return [await turns.run(trajectory, request, heard[0])]
    refused = turns.refusal(trajectory, count)
    request = _shared_limit(turns, trajectory, request)
    together = asyncio.Barrier(count)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    turns.choice(trajectory, replace(request, choice=i), heard[i], refused=refused, together=together)
                )
                for i in range(count)
            ]
    except ExceptionGroup as errors:
        for task in tasks:  # the journal may have taken some and not the others: these are given again
            if not task.cancelled() and task.exception() is None:
                task.result().lost()
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _shared_limit(turns: Turns, trajectory: OpenTrajectory, request: Request) -> Request:
    """The request with equal shares of the tokens that the key has left: the first choice would hold all of them."""
    most, used = trajectory.limits.sampled_tokens, trajectory.key_usage()
    if not most:
        return request
    share = max(1, (most - used.sampled_tokens - used.reserved_tokens) // request.choices)
    return replace(request, max_tokens=min(request.max_tokens or turns.max_tokens, share))


log = logging.getLogger(__name__)


class Endpoint:
    """Reads a request, runs a turn, writes the reply. A client that leaves stops the engine's work for it."""

    def __init__(self, dialect: Dialect[Any], turns: Turns, trajectories: Trajectories, *, max_body: int) -> None:
        self.dialect = dialect
        self.turns = turns
        self.trajectories = trajectories
        self.max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        left: asyncio.Future[AsgiMessage] | None = None
        trajectory: OpenTrajectory | None = None
        sender = Sender(send, self.turns.metrics.responses)
        try:
            trajectory = self.trajectories.of_key(client_key(dict(scope["headers"])))
            body = await read_body(receive, self.max_body)
            if body is None:
                return
            left = asyncio.ensure_future(receive())
            left.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
            request = await self.turns.read(trajectory, body, self.dialect.parse)
            await self._answer(trajectory, request, sender, left)
        except asyncio.CancelledError:
            if left is None or not left.done() or left.cancelled():
                raise
        except Exception as error:
            seen = _seen(error)
            if trajectory is not None:
                trajectory.refuse(seen)
            if sender.started:
                raise
            await sender.whole(seen.status, self.dialect.error(seen))
        finally:
            if left is not None:
                left.cancel()

    async def _answer(
        self, trajectory: OpenTrajectory, request: Request, send: Sender, left: asyncio.Future[AsgiMessage]
    ) -> None:
        if request.stream:
            await self._stream(trajectory, request, send, left)
            return
        answers = await run_choices(self.turns, trajectory, request)
        with _delivery(answers, left):
            await asyncio.sleep(0)  # to hear of a client that leaves just now
            # Log-probabilities of a long reply are a megabyte of JSON.
            each = 64 * (1 + request.top_logprobs) if request.logprobs else 4
            size = each * sum(len(answer.completion.tokens) for answer in answers)
            body = await self.turns.background.run(size, lambda: self.dialect.reply(request, answers))
            await send.whole(200, body)

    async def _stream(
        self, trajectory: OpenTrajectory, request: Request, send: Sender, left: asyncio.Future[AsgiMessage]
    ) -> None:
        streams = self.dialect.streams(request)
        live = [LiveReply(stream, self.turns.parser(request), send) for stream in streams]
        try:
            answers = await run_choices(self.turns, trajectory, request, live)
            with _delivery(answers, left):
                for reply, answer in zip(live, answers):
                    await reply.end(answer)
                await send.part(streams[0].closing(answers), end=True)
        except Exception as error:
            if not send.started:
                raise
            seen = _seen(error)
            trajectory.refuse(seen)
            for reply in live:
                await reply.halt()
            await send.part(streams[0].failed(seen), end=True)
        finally:
            for reply in live:
                reply.stop()


class CountEndpoint(Endpoint):
    """Counts the tokens of a request; samples and records nothing."""

    dialect: CountingDialect[Any]

    async def _answer(
        self, trajectory: OpenTrajectory, request: Request, send: Sender, left: asyncio.Future[AsgiMessage]
    ) -> None:
        await send.whole(200, self.dialect.counted(await self.turns.count(trajectory, request)))


@contextmanager
def _delivery(answers: Sequence[Answer], left: asyncio.Future[AsgiMessage]) -> Iterator[None]:
    """Around the sending of recorded replies: they are lost where that fails, or the client has left before their end.

    The server takes what is sent to a client that has left, and says nothing.
    """
    delivered = False
    try:
        yield
        delivered = not left.done()
    finally:
        if not delivered:
            for answer in answers:
                answer.lost()


def _seen(error: Exception) -> ApiError:
    """What the client sees of an error."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "invalid_json", "the request is nested too deeply")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal_error", f"{type(error).__name__}: {error}")
