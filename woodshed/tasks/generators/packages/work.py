"""Make all kinds of tasks of one package, in order: replayed commits, single changes, combinations of those.

A group of deletions that is rejected because some of its functions are guessable is tried once more without them.
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
"""Provenance entry: functions of the group that were not deleted, because no value tells a fix of them from a guess."""


def smaller(trial: Trial, candidate: Candidate, guessable: Collection[str]) -> Candidate | None:
    """``candidate`` without the ``guessable`` functions (``CoveredFunction.place``).

    None if the candidate is not a group that rules found, if fewer than two functions or no public one are left, if a
    group over several files would shrink to one file, or if rules propose the smaller group anyway (no change becomes
    two tasks).
    """
    if candidate.kind not in GROUPS or candidate.detail != candidate.kind or candidate.origins:
        return None
    left = [f for f in candidate.functions if f.place not in guessable]
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
    """Return whether rules propose exactly this group, starting from one of its functions."""
    return any(
        set(
            group_functions(
                suite=trial.suite, workspace=trial.workspace, kind=kind, function=function, splits=trial.splits
            )
        )
        == set(left)
        for kind in GROUPS.keys() & set(trial.settings.kinds)
        for function in left
    )


LATER = (REWARDED, UNREWARDED, TWIN)
"""Reasons for dropping a task that was already kept."""


Propose = Callable[[Trial], AsyncGenerator[Candidate | Rejected | Task, None]]
"""Yields what is tried on a package, in order, instead of the candidates that rules find. A Rejected counts as one that
failed. A Task was kept by an earlier start; only the gates that come after all tasks are made remain for it."""


@dataclass(frozen=True)
class Shared:
    """Objects that all packages of one build share. ``boxes`` limits how many boxes work at the same time."""

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
    """Makes the tasks of one package, kind by kind."""

    def __init__(self, shared: Shared, trial: Trial, tools: Toolchain, ledger: Ledger, line: PackageYield) -> None:
        self.shared, self.trial, self.tools, self.ledger, self.line = shared, trial, tools, ledger, line
        self.settings = shared.settings
        self.tasks: list[Task] = []
        self.slugs: list[str] = []
        """Slugs of tasks that were kept, including those that were dropped later: they are not replaced."""
        self._candidates: dict[str, Candidate] = {}
        """Slug -> candidate, of every candidate that was tried."""

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
        """Try proposals one at a time, so that no unneeded proposal is requested."""
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
        """Count a task of an earlier start; remove it if the ledger says that it was dropped."""
        slug, kind = task.path.name, task.info.provenance["generator"]
        why = self.ledger.verdicts.get(slug)
        if why is not None:
            shutil.rmtree(task.path)
        self.count(Verdict(slug, kind, task if why is None else None, why or "", known=True))

    def _singles(self) -> Iterator[Candidate]:
        tools = self.tools
        return candidates(
            settings=self.settings,
            suite=self.trial.suite,
            workspace=self.trial.workspace,
            change=tools.change,
            groups=tools.kinds & GROUPS.keys(),
            splits=self.trial.splits,
        )

    def _works(self, found: Iterator[Candidate]) -> Iterator[Attempt]:
        return map(self._attempt, found)

    def _attempt(self, candidate: Candidate) -> Attempt:
        self._candidates[candidate.slug] = candidate
        return Attempt(candidate.slug, candidate.kind, partial(self.trial.run, candidate))

    async def judge(self, works: Iterator[Attempt], until: int) -> int:
        """Try ``works`` until ``until`` tasks exist or the limit of attempts is reached; return the number tried."""
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
        """The smaller group to try once after a group was rejected for its guessable functions, else None."""
        if not verdict.guessable or verdict.slug not in self._candidates:
            return None
        made = smaller(self.trial, self._candidates[verdict.slug], verdict.guessable)
        changes = [c.files for c in self._candidates.values() if LEFT_OUT in c.stated]
        return made if made is not None and made.files not in changes else None  # two groups may shrink to the same one

    def count(self, verdict: Verdict) -> None:
        """Count one verdict in the tasks and in the report."""
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
        """Try a sample of the exploits on one task, and drop it if one of them is rewarded."""
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
    """Remove a task that was kept, and record why."""
    ledger.note(task.path.name, why)
    shutil.rmtree(task.path)
    line.kept -= 1
    line.rejected[why] += 1
    # Tasks of a source of the user's own need not name a generator; they are counted by the kind of the task.
    kind = task.info.provenance.get("generator", "")
    line.kinds[kind if kind in line.kinds else task.info.kind][1] -= 1
    line.smaller[1] -= LEFT_OUT in task.info.provenance
