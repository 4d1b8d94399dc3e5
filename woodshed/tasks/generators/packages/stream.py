"""Candidates in, verdicts out in the same order, a few of them tried at the same time.

The order decides which tasks a build keeps, so a verdict counts only when all before it have been reached. A task that
is finished too early waits under a hidden name; a build that is killed meanwhile finds nothing of it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from woodshed.record.task import Task
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.protocol import BoxError

from .report import Ledger, Rejected, Untold

STAGING = ".new-"
"""Prefix of folders that hold a task whose turn has not come."""

Work = Callable[[Path], Awaitable[Task]]
"""Makes the task in a folder, or raises Rejected."""


def clear_staging(out: Path) -> None:
    """Remove what a killed build had not finished."""
    for left in out.glob(f"{STAGING}*"):
        shutil.rmtree(left)


@dataclass(frozen=True)
class Attempt:
    """A candidate of some ``kind`` that is to be tried."""

    slug: str
    kind: str
    work: Work


@dataclass(frozen=True)
class Verdict:
    """``task`` is there or ``why`` not. ``known``: an earlier build reached it. ``untold``: as of ``Untold``."""

    slug: str
    kind: str
    task: Task | None
    why: str = ""
    known: bool = False
    untold: tuple[str, ...] = ()


class Stream:
    """Judges the candidates of one package. ``boxes`` bounds how many work in the whole build."""

    def __init__(self, ledger: Ledger, out: Path, boxes: asyncio.Semaphore, ahead: int) -> None:
        self.ledger, self.out, self.boxes, self.ahead = ledger, out, boxes, ahead

    async def judged(self, attempts: Iterator[Attempt]) -> AsyncGenerator[Verdict, None]:
        """A verdict for each attempt; what the ledger knows is not done again. Close it to stop.

        What this machine lacks is raised, and never noted as a verdict.
        """
        waiting: deque[tuple[str, asyncio.Task[Verdict]]] = deque()
        try:
            while True:
                while len(waiting) < self.ahead and (following := next(attempts, None)) is not None:
                    waiting.append((following.slug, asyncio.create_task(self._one(following))))
                if not waiting:
                    return
                verdict = await waiting[0][1]
                waiting.popleft()
                yield self._settled(verdict)
        finally:
            for slug, running in waiting:
                running.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await running
                shutil.rmtree(self._place(slug), ignore_errors=True)

    async def one(self, attempt: Attempt) -> Verdict:
        """The verdict on an attempt that comes before those which are being judged."""
        try:
            return self._settled(await self._one(attempt))
        finally:
            shutil.rmtree(self._place(attempt.slug), ignore_errors=True)

    async def _one(self, attempt: Attempt) -> Verdict:
        slug, kind = attempt.slug, attempt.kind
        task, why = self.ledger.find(slug, self.out)
        if task is not None or why is not None:
            return Verdict(slug, kind, task, why or "", known=True, untold=self.ledger.untold.get(slug, ()))
        try:
            async with self.boxes:
                return Verdict(slug, kind, await attempt.work(self._place(slug)))
        except Untold as reason:
            return Verdict(slug, kind, None, str(reason), untold=reason.functions)
        except Rejected as reason:
            return Verdict(slug, kind, None, str(reason))
        except BoxError as error:
            failure = in_trusted_box(error)
            if failure is not error:
                raise failure from error
            return Verdict(slug, kind, None, f"its box is gone: {error.strerror}")

    def _settled(self, verdict: Verdict) -> Verdict:
        """The task in its place, the verdict in the ledger."""
        target = self.out / verdict.slug
        if verdict.known:
            if verdict.task is None:
                shutil.rmtree(target, ignore_errors=True)  # taken back, by a build that was killed meanwhile
            return verdict
        shutil.rmtree(target, ignore_errors=True)  # of other settings, or never noted as kept
        if verdict.task is not None:
            verdict.task.path.rename(target)
            verdict = replace(verdict, task=Task.load(target))
        self.ledger.note(verdict.slug, verdict.why or None, verdict.untold)
        return verdict

    def _place(self, slug: str) -> Path:
        return self.out / f"{STAGING}{slug}"
