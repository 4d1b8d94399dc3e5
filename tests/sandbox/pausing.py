"""A pause as the box itself can tell it: by the clock."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from woodshed.sandbox.protocol import Paused

AWAY = 1.0
"""Seconds."""


async def pause_and_look(box: Any) -> None:
    """A command that writes the time is stopped for AWAY, and goes on."""
    running = asyncio.create_task(box.exec("while [ ! -e end ]; do date +%s%N >> times; sleep 0.01; done"))
    await _at_least(box, 1)
    await box.exec("sleep 300 > /dev/null 2>&1 &")
    await box.pause()
    assert box.stats()["paused"]
    for request in (box.exec("true"), box.read("times"), box.snapshot()):
        with pytest.raises(Paused, match=r"resume\(\) it first"):
            await request
    await asyncio.sleep(AWAY)
    await box.resume()
    assert (await box.usage())["processes"] >= 2
    await _at_least(box, len(await _times(box)) + 2)
    await box.write("end", b"")
    done = await running
    assert done.returncode == 0 and not done.timed_out
    times = await _times(box)
    assert max(b - a for a, b in itertools.pairwise(times)) >= AWAY, "it ran on while it was paused"


async def _at_least(box: Any, lines: int) -> None:
    while len(await _times(box)) < lines:
        await asyncio.sleep(0.02)


async def _times(box: Any) -> list[float]:
    try:
        return [int(line) / 1e9 for line in (await box.read("times")).split()]
    except FileNotFoundError:
        return []
