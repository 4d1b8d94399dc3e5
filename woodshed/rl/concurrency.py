"""How many rollouts are under way at a time, fixed or adapted to who waits for whom.

A batch that waits for the trainer was sampled too early: fewer rollouts at a time make the next ones fresher, and leave
cores that both share to the trainer. A trainer that waits for a batch needs more of them. Of each step one of the two
waits is 0. The number changes as a window of TCP does: by a few more, or to a share of what it was. What may be
dispatched at all is still bounded by staleness (``controller.may_dispatch``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from woodshed.record.settings import Settings


class AdaptiveSettings(Settings):
    """Adapts the number of rollouts under way to how long batches wait for the trainer, and the trainer for batches."""

    enabled: bool = False
    """Begins with ``rl.concurrency`` rollouts, which are the most there are; off, there are always as many."""
    least: int = Field(default=8, ge=1)
    """Fewest rollouts under way."""
    trainer_wait: float = Field(default=0.05, ge=0)
    """Share of a step that the trainer may wait for its batch; above it ``more`` rollouts run."""
    more: int = Field(default=4, ge=1)
    """Rollouts that are added then, if all that may run did."""
    batch_wait: float = Field(default=0.5, ge=0)
    """Share of a step that a batch may wait for the trainer; above it only ``fewer`` of the rollouts run."""
    fewer: float = Field(default=0.8, gt=0, lt=1)
    """Share of the rollouts that is left then."""


@dataclass(frozen=True)
class Waits:
    """Seconds of one step: from the beginning of the step before to its own, and of these how long its batch waited
    for the trainer, or the trainer for the batch."""

    step: int
    seconds: float
    batch: float
    trainer: float


def adapt(limit: int, waits: Waits, settings: AdaptiveSettings, *, full: bool, most: int) -> int:
    """The number of rollouts that may run after a step with these waits. ``full``: ``limit`` of them did run."""
    if waits.trainer > settings.trainer_wait * waits.seconds:
        return min(most, limit + settings.more) if full else limit
    if waits.batch > settings.batch_wait * waits.seconds:
        return max(settings.least, int(limit * settings.fewer))
    return limit


class WaitMeter:
    """Who waited for whom before each step, by when batches were formed and versions published.

    The trainer begins step n when batch n is there and version n - 1 is published. Of the first step that is seen
    nothing is known: it has filled the pipeline, or an earlier process has begun it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._formed: dict[int, float] = {}
        self._published: dict[int, float] = {}
        self._begun: tuple[int, float] | None = None

    def formed(self, step: int) -> None:
        """The batch of ``step`` is there."""
        self._formed.setdefault(step, self._clock())

    def published(self, version: int) -> None:
        """``version`` is there, and all before it; the chain may have skipped some."""
        newest = max(self._published, default=version - 1)
        for passed in range(newest + 1, version + 1):
            self._published[passed] = self._clock()

    def take(self) -> list[Waits]:
        """The steps that have begun since the last call."""
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
    """At most ``limit`` rollouts at a time: ``async with slots``. The limit may change while some run or wait; those
    that run are never stopped."""

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
        """Whether all slots were in use at some time since the last call."""
        full, self._was_full = self._was_full, self.held >= self.limit
        return full

    def take_share(self) -> float:
        """Share of the slots that was in use since the last call; above 1 where the limit was lowered below them."""
        self._measure()
        share = self._used / self._offered if self._offered else 0.0
        self._used = self._offered = 0.0
        return share

    def _measure(self) -> None:
        now = self._clock()
        self._used += self.held * (now - self._mark)
        self._offered += self.limit * (now - self._mark)
        self._mark = now
