"""Build task directories from RefactorBench, with its own tests in the place that they expect, and no solution.

Its tests are run on the untouched repository to find those that must pass, and every gate that needs no solution is
checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from time import perf_counter

from woodshed.grading.pytest_grader import TESTS_PREFIX, is_stray
from woodshed.grading.pytest_phases import Phase, run_phases
from woodshed.record.task import WITHHELD, Task, TaskInfo, save_task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec
from woodshed.tasks.generators.packages.report import Ledger, PackageYield, Rejected
from woodshed.tasks.generators.packages.stream import Attempt, Stream
from woodshed.tasks.generators.prompts.write import drawn_level
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.dependencies import MOUNT, dependency_layers
from woodshed.tasks.packages.harbor import pytest_check, python_image
from woodshed.tasks.packages.prepare import WORKDIR, coarse
from woodshed.tasks.pipeline.build import BuildContext
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.gates import check_task

from .read import NAME, Refactoring, Repository, read_tasks, read_workspace

FOLDER = NAME
"""Folder of the test below the repository's root: the test reads files as ``../NAME``."""
IMPORT_PATH = (MOUNT, f"{WORKDIR}/{FOLDER}")
"""``sys.path`` of the run; it has no files that an agent wrote."""

_CONFTEST = b'''"""The tests name files relative to their own folder, so they run in it."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def _in_this_folder():
    before = os.getcwd()
    os.chdir(Path(__file__).parent)
    yield
    os.chdir(before)
'''
# The repository's own conftest.py would import packages that are not installed.
_INI = f"[pytest]\naddopts = -p no:cacheprovider --confcutdir={FOLDER}\n".encode()


@dataclass(frozen=True)
class Found:
    """Results of a task's tests on the untouched repository: ids of the failing (``broken``) and passing (``whole``)
    tests. ``seconds``: duration of all tests in the slower of the two runs."""

    broken: Sequence[str]
    whole: Sequence[str]
    seconds: float


def test_file(task: Refactoring) -> str:
    """Return the path of the task's test. RefactorBench's own file names are not valid module names."""
    return f"{FOLDER}/test_{''.join(c if c.isalnum() else '_' for c in task.name)}.py"


test_file.__test__ = False  # type: ignore[attr-defined]


def grader_files(task: Refactoring) -> dict[str, bytes]:
    """Return the files that are added to the repository: the test, and configuration that runs it in its folder."""
    return {test_file(task): task.test, f"{FOLDER}/conftest.py": _CONFTEST, "pytest.ini": _INI}


def save_refactoring(
    out: Path,
    slug: str,
    task: Refactoring,
    repository: Repository,
    level: str,
    found: Found,
    runner: Package,
    layers: tuple[str, ...],
    test_timeout: float,
) -> Task:
    """Write the task directory. ``runner``: the test runner, which needs the ``layers``; ``test_timeout``: minimum time
    limit of one test, in seconds."""
    project = task.repository.removesuffix("_refactor")
    info = TaskInfo(
        family="package",
        split="heldout",
        key=f"{NAME}:{project}:{task.name}",
        grader="pytest",
        kind="refactor",
        workdir=WORKDIR,
        submission=task.reads,
        protected=(f"{FOLDER}/**", "pytest.ini"),
        fail_to_pass=tuple(found.broken),
        pass_to_pass=tuple(found.whole),
        layers=layers,
        timeout_sec=max(test_timeout * 3, round(20 * found.seconds)),
        provenance={
            "package": f"{NAME}-{project}",
            "version": repository.sha256[:12],
            "sha256": repository.sha256,
            "licence": repository.licence,
            "source": f"{NAME}:{task.repository}/{task.name}",
            "generator": NAME,
            "level": level,
            "reference": WITHHELD,
        },
    )
    tests = {TESTS_PREFIX + name: data for name, data in grader_files(task).items()}
    env = {"PYTHONPATH": ":".join(IMPORT_PATH), "PYTHONDONTWRITEBYTECODE": "1"}
    environment: Mapping[str, object] = {"network_mode": "no-network", "workdir": WORKDIR, "env": env}
    check = pytest_check(info, IMPORT_PATH, repository.files)
    return save_task(
        out,
        name=f"woodshed/{slug}",
        instruction=task.instructions[level],
        info=info,
        workspace=dict(repository.files),
        tests={**check, **tests},
        solution={},
        config={"environment": environment},
        environment=python_image(runner, env, WORKDIR),
    )


_KIND = "refactor"


async def build_refactorbench(source: str, context: BuildContext) -> tuple[list[Task], PackageYield]:
    """Build tasks from the copy that ``refactorbench:PATH`` names, at most ``tasks_per_package``, under ``out``;
    resumable.

    All are held out, whatever ``heldout_share`` is. Raises PackageError if there is no valid copy.
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
    folder: Path,
    tasks: list[Refactoring],
    settings: PackageTaskSettings,
    backend: Backend,
    layers: LayerStore,
    runner: Package,
    names: tuple[str, ...],
) -> Iterator[Attempt]:
    """Yield one attempt for each task. A repository is read at its first task and released after its last."""
    for name, members in groupby(tasks, key=lambda task: task.repository):
        trial = _Trial(read_workspace(folder, name), settings, backend, layers, runner, names)
        for task in members:
            slug = trial.slug(task)
            yield Attempt(slug, _KIND, partial(trial.run, slug, task))


@dataclass
class _Trial:
    """Tries the tasks of one repository. ``runner``: the test runner; ``names``: layers with what it needs."""

    repository: Repository
    settings: PackageTaskSettings
    backend: Backend
    layers: LayerStore
    runner: Package
    names: tuple[str, ...]
    _base: str = ""

    def slug(self, task: Refactoring) -> str:
        """Return the name of the task directory; it contains a digest of the files and texts."""
        parts = [self.repository.sha256.encode(), task.test, *(text.encode() for text in task.instructions.values())]
        digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:8]
        project = task.repository.removesuffix("_refactor")
        return f"{NAME}-{project}-{''.join(c if c.isalnum() else '-' for c in task.name.lower())}-{digest}"

    async def run(self, slug: str, task: Refactoring, out: Path) -> Task:
        """Build and check the task in ``out``; return it. Raises Rejected, and then removes ``out``."""
        if any(is_stray(name) for name in task.reads):
            raise Rejected("its test reads a file that never crosses into grading (setup.py, conftest.py, ...)")
        found = await self._found(task)
        level = drawn_level(self.settings, slug)
        try:
            made = await asyncio.to_thread(
                save_refactoring,
                out,
                slug,
                task,
                self.repository,
                level,
                found,
                self.runner,
                self.names,
                self.settings.test_timeout_sec,
            )
            report = await check_task(made, self.backend, self.layers)
            if report.failures:
                raise Rejected(f"gate {next(iter(report.failures))}")
            return made
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise

    async def _found(self, task: Refactoring) -> Found:
        """Run the tests on the untouched repository, in both orders, and return what fails and passes. Raises
        Rejected."""
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
        """Return the spec of a box with the test on top of the repository, whose layer the boxes of its tasks share."""
        self._base = self._base or self.layers.add("workspace", self._fill)
        stack = tuple(self.layers.path(name) for name in (*self.names, self._base))
        files = {f"{WORKDIR}/{name}": data for name, data in grader_files(task).items()}
        return BoxSpec(layers=stack, files=files, workdir=WORKDIR)

    def _fill(self, root: Path) -> None:
        for name, data in self.repository.files.items():
            target = root / WORKDIR.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
