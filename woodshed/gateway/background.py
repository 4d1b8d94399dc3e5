"""Threads for work that would block the event loop: parsing and encoding long requests, writing long answers.

The functions that run here must not change shared state; their results are applied in the event loop.
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
"""Maximum size in bytes of a request that is processed in the event loop, which takes at most 5 ms."""
LONG = 1 << 20
"""Requests above this size in bytes share a separate thread, so that they delay only each other."""


def keep_waits_short() -> None:
    """Tune garbage collection and thread switching for a server process. Call it once everything is loaded.

    A garbage collection stops every thread. Scanning all objects of torch takes a tenth of a second, so they are
    frozen. Scanning the values of a few large requests, which have no cycles, takes as long, so the oldest generation
    is collected rarely. The event loop needs the interpreter's lock several times per request; beside threads that
    parse large requests it would wait the default switch interval of 5 ms each time, so the interval is 1 ms.
    """
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 100)


class Background:
    """A few threads for long work. They are few because each may hold the interpreter's lock for milliseconds."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2, "woodshed-gateway")
        self._long = ThreadPoolExecutor(1, "woodshed-gateway-long")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Run ``work``, which processes ``size`` bytes: in a thread, or at once if it is short."""
        return work() if size <= AT_ONCE else await self._start(size, work)

    async def alone(self, lock: asyncio.Lock, size: int, work: Callable[[], T], then: Callable[[T], R]) -> R:
        """Like ``run``, under ``lock``; ``then`` is called with the result, under the lock and in the event loop.

        The lock is held until ``work`` has ended, even if the caller is cancelled before. So a key never occupies more
        than one thread, however often its client sends a request and disconnects.
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
        ended.exception()  # retrieved only so that asyncio does not report it as never retrieved
    lock.release()
