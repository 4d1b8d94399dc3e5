"""Timeouts that count only idle time, so that a busy machine does not use them up."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class IdleClock:
    """Clock of the time in which a family of processes neither ran nor waited for a CPU.

    It restarts at 0 when the family ran or waited for a CPU for at least half of an interval. So a program that is slow
    because other programs compute too never runs out of time, but one that hangs does. The family is process ``root``
    (default: this one) with its descendants; ``own=False`` leaves out the calling thread, for one that only polls.
    Without the kernel's ``schedstat`` this is an ordinary clock.
    """

    def __init__(self, root: int | None = None, *, own: bool = True) -> None:
        self.seconds = 0.0
        self._root = os.getpid() if root is None else root
        self._left_out = 0 if own else threading.get_native_id()
        self._looked, self._seen = time.monotonic(), self._wanted()

    def look(self) -> float:
        """Return the idle seconds. Call it often: once a second it evaluates the time since the last evaluation."""
        now = time.monotonic()
        gone = now - self._looked
        if gone < 1.0:
            return self.seconds
        wanted = self._wanted()
        busy = sum(spent - self._seen.get(thread, 0.0) for thread, spent in wanted.items())
        self.seconds = self.seconds + gone - busy if busy < gone / 2 else 0.0
        self._looked, self._seen = now, wanted
        return self.seconds

    def _wanted(self) -> dict[str, float]:
        """Return the seconds that each thread of the family has run or waited for a CPU so far, by thread id."""
        wanted: dict[str, float] = {}
        for pid in _family(self._root):
            try:
                for thread in os.listdir(f"/proc/{pid}/task"):
                    ran, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()
                    if int(thread) != self._left_out:
                        wanted[thread] = (int(ran) + int(waited)) / 1e9
            except (OSError, ValueError):
                continue
        return wanted


async def unless_idle(work: Awaitable[T], seconds: float) -> T:
    """Return the result of ``work``. Cancel it and raise TimeoutError if this process and its descendants are idle for
    more than ``seconds``."""
    task = asyncio.ensure_future(work)
    clock = IdleClock()
    try:
        while not (await asyncio.wait({task}, timeout=1.0))[0]:
            if clock.look() > seconds:
                raise TimeoutError(f"nothing happened for {seconds:g} s")
        return await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _family(root: int) -> list[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_bytes()
            except OSError:
                continue
            children[int(stat.rpartition(b")")[2].split()[1])].append(int(name))
    family = [root]
    for pid in family:
        family += children[pid]
    return family
