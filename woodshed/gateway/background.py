"""Work on requests that would hold up the event loop: reading and encoding long ones, writing long answers.

The functions that run here change nothing; what they found is put into place in the event loop.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8 << 10
"""Bytes of a request that is read and encoded in the event loop: at worst 5 ms."""
LONG = 1 << 20
"""Bytes from which on a request waits for other long ones only, and not in front of the others."""


def keep_waits_short() -> None:
    """For the process of a server, once everything is loaded: what is there stays, and is not looked at again.

    A collection stops every thread. One that looks at all of torch takes a tenth of a second, and so does one among
    the values of a few large requests; those have no cycles, so the oldest generation waits for many of them. And the
    event loop asks for the interpreter's lock several times a request: beside threads that read large ones it waited
    5 ms (the default) for each.
    """
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


class Background:
    """Few threads: each of them may take the interpreter's lock from the event loop for a few milliseconds."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "woodshed-gateway")
        self._long = ThreadPoolExecutor(1, "woodshed-gateway-long")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """``work`` on ``size`` bytes; at once where it is short."""
        return work() if size <= AT_ONCE else await self._start(size, work)

    async def alone(self, lock: asyncio.Lock, size: int, work: Callable[[], T], then: Callable[[T], R]) -> R:
        """As ``run`` under ``lock``; ``then`` is called with the result, under the lock and in the event loop.

        The lock is held until ``work`` has ended, also where the caller is cancelled before: so no key ever has more
        than one thread, however often its client sends a request and leaves.
        """
        await lock.acquire()
        job: asyncio.Future[T] | None = None
        try:
            if size <= AT_ONCE:
                return then(work())
            job = self._start(size, work)
            return then(await asyncio.shield(job))
        finally:
            if job is None or job.done():
                lock.release()
            else:
                job.add_done_callback(lambda ended: _release(lock, ended))

    def _start(self, size: int, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._long if size > LONG else self._threads, work)


def _release(lock: asyncio.Lock, ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled():
        ended.exception()  # nobody else asks for it
    lock.release()
