"""Endpoints of the dialects, as plain ASGI because a run calls them tens of thousands of times.

A request with n choices runs n turns, and delivers all replies or none. It is recorded like n equal concurrent
requests: the first extends the segment; the others start segments that share its tokens up to the reply as context. The
client continues from any of them.
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

log = logging.getLogger(__name__)


async def run_choices(
    turns: Turns, trajectory: OpenTrajectory, request: Request, listeners: Sequence[Listener] = ()
) -> list[Answer]:
    """Return one answer per choice, in order; ``listeners`` has one entry per choice or is empty.

    Nothing is recorded before all choices are sampled. An error in one choice, or a client that disconnects, ends them
    all; the tokens sampled until then count against the key's limits. Raises ApiError.
    """
    try:
        return await _run_choices(turns, trajectory, request, listeners)
    except (asyncio.CancelledError, ApiError) as error:
        turns.metrics.cancelled += not isinstance(error, ApiError) or error.code == "trajectory_closed"
        raise


async def _run_choices(
    turns: Turns, trajectory: OpenTrajectory, request: Request, listeners: Sequence[Listener]
) -> list[Answer]:
    count = request.choices
    listening: Sequence[Listener | None] = listeners or [None] * count
    if count == 1:
        return [await turns.run(trajectory, request, listening[0])]
    refused = turns.refusal(trajectory, count)
    request = _shared_limit(trajectory, request)
    together = asyncio.Barrier(count)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    turns.choice(
                        trajectory, replace(request, choice=i), listening[i], refused=refused, together=together
                    )
                )
                for i in range(count)
            ]
    except ExceptionGroup as errors:
        for task in tasks:  # the journal may have accepted some; a repeated request gets these answers again
            if not task.cancelled() and task.exception() is None:
                task.result().lost()
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _shared_limit(trajectory: OpenTrajectory, request: Request) -> Request:
    """Limit each choice to an equal share of the key's remaining tokens; otherwise the first choice would reserve all
    of them."""
    most, used = trajectory.limits.sampled_tokens, trajectory.key_usage()
    if not most:
        return request
    return replace(request, share=max(1, (most - used.sampled_tokens - used.reserved_tokens) // request.choices))


class Endpoint:
    """Reads a request, runs a turn, writes the reply. A client that disconnects stops the engine's work for it."""

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
            visible = _visible(error)
            if trajectory is not None:
                trajectory.refuse(visible)
            if sender.started:
                raise
            await sender.whole(visible.status, self.dialect.error(visible))
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
            await asyncio.sleep(0)  # notice a client that has just disconnected
            # log-probabilities of a long reply are a megabyte of JSON
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
            visible = _visible(error)
            trajectory.refuse(visible)
            for reply in live:
                await reply.halt()
            await send.part(streams[0].failed(visible), end=True)
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
    """Context in which recorded replies are sent: they are marked as not delivered if sending fails, or if the client
    disconnected before the end. (The server accepts data for a disconnected client without an error.)
    """
    delivered = False
    try:
        yield
        delivered = not left.done()
    finally:
        if not delivered:
            for answer in answers:
                answer.lost()


def _visible(error: Exception) -> ApiError:
    """The error that the client gets for an exception."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RecursionError):
        return ApiError(400, "invalid_json", "the request is nested too deeply")
    log.error("a request failed", exc_info=error)
    return ApiError(500, "internal_error", f"{type(error).__name__}: {error}")
