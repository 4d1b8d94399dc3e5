"""Hands results from the engine's thread to asyncio callers: one wake-up per event loop and iteration."""

from __future__ import annotations

import asyncio
from typing import Any


def _settle(results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in results:
        if future.done():  # the caller gave up meanwhile
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


class Outbox:
    """Collects (future, result or exception) and delivers them with ``flush``. Used by the engine's thread only."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def put(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any) -> None:
        self._pending.setdefault(loop, []).append((future, result))

    def flush(self) -> None:
        for loop, results in self._pending.items():
            try:
                loop.call_soon_threadsafe(_settle, results)
            except RuntimeError:  # the caller's loop was closed: nobody is left to tell
                pass
        self._pending.clear()
