"""Tasks of RefactorBench: what its tests say of the untouched repository, and every gate that needs no solution."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from time import perf_counter

from woodshed.grading.pytest_grader import is_stray
from woodshed.grading.pytest_phases import Phase, run_phases
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec
from woodshed.tasks.generators.packages.catalogue import Package
from woodshed.tasks.generators.packages.dependencies import dependency_layers
from woodshed.tasks.generators.packages.ledger import Ledger
from woodshed.tasks.generators.packages.prepare import WORKDIR, coarse
from woodshed.tasks.generators.packages.rejected import Rejected
from woodshed.tasks.generators.packages.report import PackageYield
from woodshed.tasks.generators.packages.settings import PackageTaskSettings
from woodshed.tasks.generators.packages.stream import Attempt, Stream
from woodshed.tasks.generators.prompts.write import drawn_level
from woodshed.tasks.sources.factory import BuildContext
from woodshed.tasks.validate.gates import check_task

from .form import FOLDER, IMPORT_PATH, Found, grader_files, save_refactoring, test_file
from .read import NAME, Refactoring, Repository, read_tasks, read_workspace

_KIND = "refactor"


async def build_refactorbench(source: str, context: BuildContext) -> tuple[list[Task], PackageYield]:
    """Tasks of the copy that ``refactorbench:PATH`` names, at most ``tasks_per_package``, under ``out``; resumable.

    All are held out, whatever ``heldout_share`` says. Raises PackageError where the copy is none.
    """
    settings, catalogue, backend, layers = context.settings, context.catalogue, context.backend, context.layers
    out, boxes, cache = context.out, context.boxes, context.cache
    start = perf_counter()
    folder, tasks = await asyncio.to_thread(read_tasks, source)
    line, made = PackageYield(NAME, functions=len(tasks)), []
    runner = catalogue.furnished(Package(NAME, "1", "", "", "", (), (FOLDER,), (FOLDER,)))
    names = dependency_layers(catalogue, runner, layers, cache=cache)
    ledger = Ledger(out / f".{NAME}.jsonl", f"{settings.test_timeout_sec}:{settings.level}")
    stream = Stream(ledger, out, boxes, settings.parallel)
    async with aclosing(stream.judged(_attempts(folder, tasks, settings, backend, layers, runner, names))) as verdicts:
        async for verdict in verdicts:
            line.tried += 1
            line.count(_KIND, verdict.task is not None)
            if verdict.task is None:
                line.rejected[verdict.why] += 1
            else:
                made.append(verdict.task)
            context.progress(line.tried, len(tasks), f"{verdict.slug}: {verdict.why or 'kept'}")
            if len(made) == settings.tasks_per_package:
                break
    line.kept, line.seconds, line.finished = len(made), perf_counter() - start, True
    return made, line


def _attempts(
    folder: Path, tasks: list[Refactoring], settings: PackageTaskSettings, backend: Backend, layers: LayerStore,
    runner: Package, names: tuple[str, ...],
) -> Iterator[Attempt]:  # fmt: skip
    """One for each task; a repository is read when its first task comes, and forgotten after its last."""
    for name, members in groupby(tasks, key=lambda task: task.repository):
        trial = _Trial(read_workspace(folder, name), settings, backend, layers, runner, names)
        for task in members:
            slug = trial.slug(task)
            yield Attempt(slug, _KIND, partial(trial.run, slug, task))


@dataclass
class _Trial:
    """Tries the tasks of one repository. ``names``: layers with what ``runner`` needs, the test runner."""

    repository: Repository
    settings: PackageTaskSettings
    backend: Backend
    layers: LayerStore
    runner: Package
    names: tuple[str, ...]
    _base: str = ""

    def slug(self, task: Refactoring) -> str:
        """Name of the task directory; another copy of the files or of the texts has another."""
        parts = [self.repository.sha256.encode(), task.test, *(text.encode() for text in task.instructions.values())]
        digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:8]
        project = task.repository.removesuffix("_refactor")
        return f"{NAME}-{project}-{''.join(c if c.isalnum() else '-' for c in task.name.lower())}-{digest}"

    async def run(self, slug: str, task: Refactoring, out: Path) -> Task:
        """The finished task in ``out``, which is not there where Rejected is raised."""
        if any(is_stray(name) for name in task.reads):
            raise Rejected("its test reads a file that never crosses into grading (setup.py, conftest.py, ...)")
        found = await self._found(task)
        level = drawn_level(self.settings, slug)
        try:
            made = await asyncio.to_thread(
                save_refactoring, out, slug, task, self.repository, level, found, self.runner,
                self.names, self.settings.test_timeout_sec,
            )  # fmt: skip
            report = await check_task(made, self.backend, self.layers)
            if report.failures:
                raise Rejected(f"gate {next(iter(report.failures))}")
            return made
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise

    async def _found(self, task: Refactoring) -> Found:
        """What fails and what passes untouched, in both orders. Raises Rejected."""
        limit = self.settings.test_timeout_sec
        phases = [
            Phase([test_file(task)], None, timeout=120.0, test_timeout=limit, reverse=again, fresh=again)
            for again in (False, True)
        ]
        box = await self.backend.create(self._spec(task))
        try:
            runs = await run_phases(box, phases, path=IMPORT_PATH, workdir=WORKDIR)
        finally:
            await box.close()
        if not all(run.complete and run.results for run in runs):
            raise Rejected("its tests do not run to their end")
        first, second = ({t: r.status for t, r in run.results.items()} for run in runs)
        if first != second:
            raise Rejected("results change from run to run")
        broken = [t for t, status in first.items() if status in ("failed", "error")]
        whole = [t for t, status in first.items() if status == "passed"]
        if not broken:
            raise Rejected("no test fails")
        if len(broken) + len(whole) < len(first):
            raise Rejected("a test is skipped")
        seconds = max(sum(coarse(r.seconds) for r in run.results.values()) for run in runs)
        return Found(sorted(broken), sorted(whole), seconds)

    def _spec(self, task: Refactoring) -> BoxSpec:
        """A box with the test over the repository, which lies in a layer that the boxes of its tasks share."""
        self._base = self._base or self.layers.add("workspace", self._fill)
        stack = tuple(self.layers.path(name) for name in (*self.names, self._base))
        files = {f"{WORKDIR}/{name}": data for name, data in grader_files(task).items()}
        return BoxSpec(layers=stack, files=files, workdir=WORKDIR)

    def _fill(self, root: Path) -> None:
        for name, data in self.repository.files.items():
            target = root / WORKDIR.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
