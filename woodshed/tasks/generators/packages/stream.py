"""Try candidates concurrently and yield their verdicts in the order of the candidates.

The order decides which tasks a build keeps, so a verdict counts only after all earlier ones. A task that is finished
early waits in a hidden folder, which the next start removes if the build is killed meanwhile.
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

from .report import Guessable, Ledger, Rejected

STAGING = ".new-"
"""Prefix of the hidden folders of tasks that are not finished, or whose turn has not come."""

Work = Callable[[Path], Awaitable[Task]]
"""Writes the task into a folder that does not exist yet, or raises Rejected."""


def clear_staging(out: Path) -> None:
    """Remove the unfinished tasks of a build that was killed."""
    for left in out.glob(f"{STAGING}*"):
        shutil.rmtree(left)


@dataclass(frozen=True)
class Attempt:
    """A candidate to be tried. ``slug``: name of its task directory."""

    slug: str
    kind: str
    work: Work


@dataclass(frozen=True)
class Verdict:
    """The finished ``task``, or ``why`` the candidate was rejected.

    ``known``: the verdict is from an earlier start. ``guessable``: the functions of a ``Guessable`` rejection.
    """

    slug: str
    kind: str
    task: Task | None
    why: str = ""
    known: bool = False
    guessable: tuple[str, ...] = ()


class Stream:
    """Judges the candidates of one package, ``ahead`` at a time; ``boxes`` limits the boxes of the whole build."""

    def __init__(self, ledger: Ledger, out: Path, boxes: asyncio.Semaphore, ahead: int) -> None:
        self.ledger, self.out, self.boxes, self.ahead = ledger, out, boxes, ahead

    async def judged(self, attempts: Iterator[Attempt]) -> AsyncGenerator[Verdict, None]:
        """Yield a verdict for each attempt; verdicts in the ledger are reused. Close the generator to stop.

        Errors of the host are raised and never recorded as verdicts.
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
        """Return the verdict on one attempt, ahead of those in ``judged``."""
        try:
            return self._settled(await self._one(attempt))
        finally:
            shutil.rmtree(self._place(attempt.slug), ignore_errors=True)

    async def _one(self, attempt: Attempt) -> Verdict:
        slug, kind = attempt.slug, attempt.kind
        task, why = self.ledger.find(slug, self.out)
        if task is not None or why is not None:
            return Verdict(slug, kind, task, why or "", known=True, guessable=self.ledger.guessable.get(slug, ()))
        try:
            async with self.boxes:
                return Verdict(slug, kind, await attempt.work(self._place(slug)))
        except Guessable as reason:
            return Verdict(slug, kind, None, str(reason), guessable=reason.functions)
        except Rejected as reason:
            return Verdict(slug, kind, None, str(reason))
        except BoxError as error:
            failure = in_trusted_box(error)
            if failure is not error:
                raise failure from error
            return Verdict(slug, kind, None, f"its box is gone: {error.strerror}")

    def _settled(self, verdict: Verdict) -> Verdict:
        """Move the task to its place and record the verdict in the ledger."""
        target = self.out / verdict.slug
        if verdict.known:
            if verdict.task is None:
                shutil.rmtree(target, ignore_errors=True)  # dropped by a build that was killed before it removed it
            return verdict
        shutil.rmtree(target, ignore_errors=True)  # made with other settings, or never recorded as kept
        if verdict.task is not None:
            verdict.task.path.rename(target)
            verdict = replace(verdict, task=Task.load(target))
        self.ledger.note(verdict.slug, verdict.why or None, verdict.guessable)
        return verdict

    def _place(self, slug: str) -> Path:
        return self.out / f"{STAGING}{slug}"
