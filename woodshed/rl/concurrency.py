"""Number of rollouts in flight: fixed, or adapted to whether batches wait for the trainer or the trainer for batches.

A batch that waits for the trainer was sampled too early: with fewer rollouts in flight the next batches are fresher,
and the trainer gets more of the cores that both share. A trainer that waits for a batch needs more rollouts. In each
step one of the two waits is 0. The number changes like the congestion window of TCP (additive increase, multiplicative
decrease). Staleness bounds the dispatch in any case (``controller.may_dispatch``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from woodshed.record.settings import Settings


class AdaptiveSettings(Settings):
    """Adapts the number of rollouts in flight to how long batches wait for the trainer, and the trainer for batches."""

    enabled: bool = False
    """Start with ``rl.concurrency`` rollouts in flight, which is also the maximum, and adapt the number. If off, the
    number is always ``rl.concurrency``."""
    least: int = Field(default=8, ge=1)
    """Minimum number of rollouts in flight."""
    trainer_wait: float = Field(default=0.05, ge=0)
    """Share of a step that the trainer may wait for its batch; above it the limit is raised by ``more``."""
    more: int = Field(default=4, ge=1)
    """Number of rollouts by which the limit is raised, if it was reached."""
    batch_wait: float = Field(default=0.5, ge=0)
    """Share of a step that a batch may wait for the trainer; above it the limit is multiplied by ``fewer``."""
    fewer: float = Field(default=0.8, gt=0, lt=1)
    """Factor by which the limit is lowered."""


@dataclass(frozen=True)
class Waits:
    """Times of one step in seconds. ``seconds``: from the start of the previous step to the start of this one; of
    these, ``batch``: how long the batch waited for the trainer, ``trainer``: how long the trainer waited for it."""

    step: int
    seconds: float
    batch: float
    trainer: float


def adapt(limit: int, waits: Waits, settings: AdaptiveSettings, *, full: bool, most: int) -> int:
    """Return the limit of rollouts in flight after a step with these waits. ``full``: whether ``limit`` was reached;
    ``most``: maximum of the result."""
    if waits.trainer > settings.trainer_wait * waits.seconds:
        return min(most, limit + settings.more) if full else limit
    if waits.batch > settings.batch_wait * waits.seconds:
        return max(settings.least, int(limit * settings.fewer))
    return limit


class WaitMeter:
    """Measures the waits before each step from the times at which batches were formed and versions published.

    The trainer begins step n when batch n exists and version n - 1 is published. The first step gets no measurement:
    it filled the pipeline, or an earlier process began it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._formed: dict[int, float] = {}
        self._published: dict[int, float] = {}
        self._begun: tuple[int, float] | None = None

    def formed(self, step: int) -> None:
        """Note that the batch of ``step`` was formed now."""
        self._formed.setdefault(step, self._clock())

    def published(self, version: int) -> None:
        """Note that ``version`` and all before it are published now; the chain may have skipped some."""
        newest = max(self._published, default=version - 1)
        for passed in range(newest + 1, version + 1):
            self._published[passed] = self._clock()

    def take(self) -> list[Waits]:
        """Return the waits of the steps that have begun since the last call."""
        found = []
        for step in sorted(self._formed):
            if step - 1 not in self._published:
                break
            there, free = self._formed.pop(step), self._published[step - 1]
            begun = max(there, free)
            if self._begun is not None and self._begun[0] == step - 1:
                found.append(Waits(step, begun - self._begun[1], batch=begun - there, trainer=begun - free))
            self._begun = (step, begun)
        newest = max(self._published, default=0)
        self._published = {version: at for version, at in self._published.items() if version >= newest - 1}
        return found


class Slots:
    """Semaphore for at most ``limit`` rollouts at a time: ``async with slots``. The limit may change while rollouts run
    or wait; running rollouts are never stopped."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit, self._clock = limit, clock
        self.held = 0
        self._freed = asyncio.Condition()
        self._was_full = False
        self._used = self._offered = 0.0
        self._mark = clock()

    async def __aenter__(self) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: self.held < self.limit)
            self._measure()
            self.held += 1
            self._was_full |= self.held >= self.limit

    async def __aexit__(self, *_: object) -> None:
        self._measure()
        self.held -= 1
        async with self._freed:
            self._freed.notify_all()

    async def set_limit(self, limit: int) -> None:
        self._measure()
        self.limit = limit
        async with self._freed:
            self._freed.notify_all()

    def take_full(self) -> bool:
        """Return whether all slots were in use at some time since the last call."""
        full, self._was_full = self._was_full, self.held >= self.limit
        return full

    def take_share(self) -> float:
        """Return the mean share of the slots in use since the last call; above 1 if the limit was lowered below the
        number in use."""
        self._measure()
        share = self._used / self._offered if self._offered else 0.0
        self._used = self._offered = 0.0
        return share

    def _measure(self) -> None:
        now = self._clock()
        self._used += self.held * (now - self._mark)
        self._offered += self.limit * (now - self._mark)
        self._mark = now
