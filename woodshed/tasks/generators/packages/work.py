"""All kinds of tasks of one package, in the order in which they are made.

A group of deletions without the functions that no value tells of: a candidate of its own, which is tried once.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.changes.candidates import Candidate, candidates, combinations, group_functions
from woodshed.tasks.generators.changes.groups import GROUPS, delete_group, is_private
from woodshed.tasks.generators.prompts.write import Writer
from woodshed.tasks.packages.catalogue import Catalogue
from woodshed.tasks.packages.prepare import CoveredFunction
from woodshed.tasks.packages.source import fetch_history
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.repository import Objects
from woodshed.tasks.validate.attack import REWARDED, UNREWARDED, attack, attacked
from woodshed.tasks.validate.splits import TWIN

from .replay import Replay
from .report import Ledger, PackageYield, Rejected
from .stream import Attempt, Stream, Verdict
from .toolchain import Toolchain
from .trial import Trial

LEFT_OUT = "left_out"
"""Entry of a task's provenance: the functions of its group that stayed, because no value tells a fix from a guess."""


def smaller(trial: Trial, candidate: Candidate, untold: Collection[str]) -> Candidate | None:
    """``candidate`` without the functions ``untold`` (``CoveredFunction.place``); None where it is no group that rules
    found, or what is left is not of its kind: two functions, one of them public, over several files where it was.

    None also where rules offer just this group by themselves: no change becomes two tasks.
    """
    if candidate.kind not in GROUPS or candidate.detail != candidate.kind or candidate.origins:
        return None
    left = [f for f in candidate.functions if f.place not in untold]
    if len(left) < 2 or len(left) == len(candidate.functions) or _offered(trial, left):
        return None
    files = delete_group(left, trial.workspace)
    first = next((f for f in left if f == candidate.function or not is_private(f.name)), None)
    if first is None or len(files) < min(2, len(candidate.files)):
        return None
    also = tuple(f for f in left if f != first)
    stayed = ", ".join(f.place for f in candidate.functions if f not in left)
    return replace(candidate, function=first, also=also, files=files, stated={**candidate.stated, LEFT_OUT: stayed})


def _offered(trial: Trial, left: Sequence[CoveredFunction]) -> bool:
    """Whether one of the functions leads to this group."""
    return any(
        set(group_functions(trial.suite, trial.workspace, kind, function, trial.splits)) == set(left)
        for kind in GROUPS.keys() & set(trial.settings.kinds)
        for function in left
    )


LATER = (REWARDED, UNREWARDED, TWIN)
"""Reasons that are found only when a task was kept already."""


Propose = Callable[[Trial], AsyncGenerator[Candidate | Rejected | Task, None]]
"""What is tried on a package, in order, instead of what rules find; a Rejected is no candidate, and counted. A Task is
one that an earlier start had kept when it was stopped: it goes through the gates that come after all are made."""


@dataclass(frozen=True)
class Shared:
    """What all packages of one build share. ``boxes`` bounds how many work at the same time."""

    settings: PackageTaskSettings
    catalogue: Catalogue
    backend: Backend
    layers: LayerStore
    out: Path
    cache: Path | None
    boxes: asyncio.Semaphore
    say: Callable[[PackageYield], None]
    writer: Writer
    propose: Propose | None = None
    ledgers: dict[str, Ledger] = field(default_factory=dict)


class PackageWork:
    """The kinds of one package, one after the other: what is replayed, single changes, combinations of those."""

    def __init__(self, shared: Shared, trial: Trial, tools: Toolchain, ledger: Ledger, line: PackageYield) -> None:
        self.shared, self.trial, self.tools, self.ledger, self.line = shared, trial, tools, ledger, line
        self.settings = shared.settings
        self.tasks: list[Task] = []
        self.slugs: list[str] = []
        """Of tasks kept, and of those that were dropped only after they had been kept: nothing takes their place."""
        self._candidates: dict[str, Candidate] = {}
        """By slug: what was handed out, or made of that."""

    async def kinds(self) -> None:
        settings, package = self.settings, self.trial.package
        total = settings.tasks_per_package
        if self.shared.propose is not None:
            await self._proposed(self.shared.propose, total)
            return
        kinds = [kind for kind in settings.kinds if kind in self.tools.kinds]
        share = max(1, total // len(kinds))
        single = any(kind not in ("replay", "combine") for kind in kinds)
        if package.history and "replay" in kinds:
            objects = await asyncio.to_thread(lambda: Objects(fetch_history(package, self.shared.out)))
            try:
                await self.judge(Replay(objects, self.trial).attempts(package.commit), share if single else total)
            finally:
                objects.close()
        left = share if "combine" in kinds else 0
        judged = await self.judge(self._works(self._singles()), total - left)
        if left:
            kept = [self._candidates[slug] for slug in self.slugs if slug in self._candidates]
            await self.judge(self._works(combinations(settings, self.trial.workspace, kept)), total)
            await self.judge(self._works(islice(self._singles(), judged, None)), total)

    async def _proposed(self, propose: Propose, total: int) -> None:
        """One after the other: nobody is asked for a candidate that may not be needed."""
        async with aclosing(propose(self.trial)) as proposals:
            async for found in proposals:
                if isinstance(found, Rejected):
                    self.count(Verdict("", "delete_function", None, str(found)))
                elif isinstance(found, Task):
                    self._again(found)
                else:
                    await self.judge(self._works(iter([found])), total)
                if len(self.slugs) >= total:
                    break

    def _again(self, task: Task) -> None:
        """Count a task that is there, unless it was being taken back."""
        slug, kind = task.path.name, task.info.provenance["generator"]
        why = self.ledger.verdicts.get(slug)
        if why is not None:
            shutil.rmtree(task.path)
        self.count(Verdict(slug, kind, task if why is None else None, why or "", known=True))

    def _singles(self) -> Iterator[Candidate]:
        tools = self.tools
        return candidates(
            self.settings,
            self.trial.suite,
            self.trial.workspace,
            tools.change,
            tools.kinds & GROUPS.keys(),
            self.trial.splits,
        )

    def _works(self, found: Iterator[Candidate]) -> Iterator[Attempt]:
        return map(self._attempt, found)

    def _attempt(self, candidate: Candidate) -> Attempt:
        self._candidates[candidate.slug] = candidate
        return Attempt(candidate.slug, candidate.kind, partial(self.trial.run, candidate))

    async def judge(self, works: Iterator[Attempt], until: int) -> int:
        """Try ``works`` until ``until`` tasks are there, or too many were in vain; how many of them were tried."""
        limit = (until - len(self.slugs)) * self.settings.attempts
        if limit <= 0:
            return 0
        tried = 0
        stream = Stream(self.ledger, self.shared.out, self.shared.boxes, self.settings.parallel)
        async with aclosing(stream.judged(works)) as verdicts:
            async for verdict in verdicts:
                tried += 1
                self.count(verdict)
                if (again := self._smaller(verdict)) is not None:
                    self.count(settled := await stream.one(self._attempt(again)))
                    self.line.smaller[0] += 1
                    self.line.smaller[1] += settled.task is not None
                if len(self.slugs) >= until or tried == limit:
                    break
        return tried

    def _smaller(self, verdict: Verdict) -> Candidate | None:
        """What is tried after a group was rejected for some of its functions only; once, whatever becomes of it."""
        if not verdict.untold or verdict.slug not in self._candidates:
            return None
        made = smaller(self.trial, self._candidates[verdict.slug], verdict.untold)
        changes = [c.files for c in self._candidates.values() if LEFT_OUT in c.stated]
        return made if made is not None and made.files not in changes else None  # two groups may leave the same

    def count(self, verdict: Verdict) -> None:
        """One more verdict, for the tasks and for the table."""
        line = self.line
        line.tried += 1
        line.count(verdict.kind, verdict.task is not None)
        if verdict.task is not None:
            self.tasks.append(verdict.task)
            self.trial.kept[verdict.slug] = verdict.task
        else:
            line.rejected[verdict.why] += 1
        if verdict.task is not None or verdict.why.startswith(LATER):
            self.slugs.append(verdict.slug)
        line.kept = len(self.tasks)
        self.shared.say(line)

    async def attack(self) -> None:
        """Try a sample of the exploits on one task; it is dropped where one of them is rewarded."""
        slug = attacked(self.slugs)
        task = next((task for task in self.tasks if task.path.name == slug), None)
        if task is None or self.ledger.has_passed(slug, "exploits"):
            return
        why = await attack(task, self.settings.exploits, self.shared.backend, self.shared.layers)
        if why:
            self.tasks.remove(task)
            drop(task, why, self.line, self.ledger)
        else:
            self.ledger.note_passed(slug, "exploits")


def drop(task: Task, why: str, line: PackageYield, ledger: Ledger) -> None:
    """Take back a task that was kept."""
    ledger.note(task.path.name, why)
    shutil.rmtree(task.path)
    line.kept -= 1
    line.rejected[why] += 1
    line.kinds[task.info.provenance["generator"]][1] -= 1
    line.smaller[1] -= LEFT_OUT in task.info.provenance
