"""Commit replay: a commit that changed code and tests becomes a task whose solution is the code of the commit.

The agent gets the parent of the commit, with the parent's tests. The tests of the commit grade: those that fail on the
parent and pass on the commit, twice and in both orders. Nothing of the history reaches a workspace.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.changes.partition import Splits
from woodshed.tasks.languages.python import changed_functions
from woodshed.tasks.packages.history import Commit, replayable
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import CoveredFunction, Suite, suite_files
from woodshed.tasks.packages.workspace import is_source, is_test, workspace_of
from woodshed.tasks.sources.repository import Objects

from .report import Rejected
from .stream import Attempt
from .trial import Trial

_WHOLE_SUITE_SECONDS = 10.0
"""If one run of the newest commit's suite takes longer, only test files that mention the changed code are run."""


@dataclass(frozen=True)
class Replay:
    """Replays commits of one package. ``like``: the trial of its newest state; each commit gets a copy."""

    objects: Objects
    like: Trial

    def attempts(self, commit: str) -> Iterator[Attempt]:
        """An attempt for each commit worth trying, from ``commit`` back, newest first."""
        package, added, settings = self.like.package, self._added(commit), self.like.settings.replay
        log = self.objects.log(commit, first_parent=settings.history == "first_parent")
        for found in replayable(log, package.sources, package.tests, settings):
            yield Attempt(f"{package.name}-{found.id[:12]}-replay", "replay", partial(self._run, found, added))

    def _added(self, commit: str) -> dict[str, bytes]:
        """Files that an install added to those of the newest commit."""
        package = self.like.package
        if not package.install:
            return {}
        newest = workspace_of(package, self.objects.files(commit))
        return {name: data for name, data in self.like.workspace.items() if name not in newest}

    async def _run(self, commit: Commit, added: dict[str, bytes], out: Path) -> Task:
        async with self._opened(commit, added) as (trial, parent):
            return await trial.run(await self._candidate(trial, commit, parent), out)

    @asynccontextmanager
    async def _opened(
        self, commit: Commit, added: dict[str, bytes]
    ) -> AsyncGenerator[tuple[Trial, dict[str, bytes]], None]:
        """Yield (trial whose workspace is that of the commit, files of its parent)."""
        package = self.like.package
        try:
            child = workspace_of(package, await asyncio.to_thread(self.objects.files, commit.id)) | added
            parent = workspace_of(package, await asyncio.to_thread(self.objects.files, commit.parent)) | added
        except PackageError:
            raise Rejected("the commit is laid out otherwise") from None
        suite = Suite(package=package.name, tests={}, functions=(), unstable={}, seconds=0.0)
        trial = replace(self.like, suite=suite, workspace=child, kept={})
        try:
            yield trial, parent
        finally:
            await trial.close()

    async def _candidate(self, trial: Trial, commit: Commit, parent: Mapping[str, bytes]) -> Candidate:
        package, child = trial.package, trial.workspace
        changed = [n for n in {**parent, **child} if is_source(package, n) and parent.get(n) != child.get(n)]
        if not changed:
            raise Rejected("the commit changes no code")
        if any(name not in child for name in changed):
            raise Rejected("the commit removes files")
        split = split_of_change(self.like.splits, changed, parent, child)
        touched = {n for n in child if n.endswith(".py") and is_test(package, n) and parent.get(n) != child[n]}
        trial.suite = await self._suite(trial, changed, touched)
        about = tuple(t for t in trial.suite.tests if t.partition("::")[0] in touched)
        if not about:
            raise Rejected("no test of the commit passes twice")
        function = CoveredFunction(
            module=changed[0], name=commit.id[:12], line=1, end_line=1, statements=0, tests=about
        )
        files = {name: parent.get(name, b"") for name in changed}
        return Candidate(
            package=package.name,
            function=function,
            kind="replay",
            detail="replay",
            files=files,
            line=0,
            split=split,
            start=parent,
            commit=commit,
        )

    async def _suite(self, trial: Trial, changed: list[str], touched: set[str]) -> Suite:
        """The tests of the commit that pass in both orders, with their times."""
        files = suite_files(trial.package, trial.workspace)
        if self.like.suite.seconds > 2 * _WHOLE_SUITE_SECONDS:
            files = sorted(touched | _mentioning(trial.workspace, changed))
        return await trial.stable_suite(files)


def split_of_change(of: Splits, changed: list[str], before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """The split of the functions in which the ``changed`` files differ. Raises Rejected if they are of both splits."""
    splits = set()
    for name in changed:
        old, new = (files.get(name, b"").decode("utf-8", "replace") for files in (before, after))
        for function in {*changed_functions(old, new), *changed_functions(new, old)}:
            splits.add(of.of(CoveredFunction(module=name, name=function, line=1, end_line=1, statements=1, tests=())))
    if len(splits) > 1:
        raise Rejected("it changes functions of both splits")
    if not splits:  # a constant, for example
        return of.of(CoveredFunction(module=changed[0], name="", line=1, end_line=1, statements=1, tests=()))
    return splits.pop()


def _mentioning(workspace: Mapping[str, bytes], changed: list[str]) -> set[str]:
    """Test modules in which the name of a changed module occurs as a word."""
    stems = {p.parent.name if p.stem == "__init__" else p.stem for p in map(PurePosixPath, changed)}
    modules = [n for n in workspace if PurePosixPath(n).name.startswith("test") and n.endswith(".py")]
    return {n for n in modules if stems & set(re.findall(r"\w+", workspace[n].decode("utf-8", "replace")))}
