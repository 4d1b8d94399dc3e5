"""Copies bytes between two connections, counted and within a budget."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

_CHUNK = 1 << 16
IDLE_SECONDS = 120.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Spent(Exception):
    """The box has moved all the bytes that it may move."""


@dataclass
class Budget:
    """Bytes that a box may still move, over all of its connections."""

    left: int


class Meter:
    """Counts what one direction of one connection moves."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.bytes = 0

    def add(self, count: int) -> None:
        """Count bytes. Raises Spent if the budget is exceeded."""
        self.bytes += count
        self._budget.left -= count
        if self._budget.left < 0:
            raise Spent


async def copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter, count: int | None = None
) -> None:
    """Copy ``count`` bytes, or all until the end. Raises TimeoutError if nothing moves, Spent, ConnectionError."""
    while count is None or count > 0:
        async with asyncio.timeout(IDLE_SECONDS):
            data = await reader.read(_CHUNK if count is None else min(_CHUNK, count))
            if not data:
                return
            meter.add(len(data))
            writer.write(data)
            await writer.drain()
        count = None if count is None else count - len(data)


async def tunnel(near: Stream, far: Stream, up: Meter, down: Meter) -> None:
    """Copy in both directions until both have ended or one breaks off. Raises Spent."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter) -> None:
        await copy(reader, writer, meter)
        if writer.can_write_eof():
            writer.write_eof()

    tasks = [asyncio.create_task(one(near[0], far[1], up)), asyncio.create_task(one(far[0], near[1], down))]
    try:
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
