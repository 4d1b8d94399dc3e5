"""Several replies to one request (``n``): each is a turn of its own, and all of them are given or none.

A request with n choices is recorded as n equal requests at the same time are: the first extends the segment, the others
are segments that share its tokens up to their reply as context, and the client goes on from whichever it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from .request import Request
from .trajectories import OpenTrajectory
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
    most, used = trajectory.terms.sampled_tokens, trajectory.used()
    if not most:
        return request
    share = max(1, (most - used.sampled_tokens - used.held) // request.choices)
    return replace(request, max_tokens=min(request.max_tokens or turns.max_tokens, share))
