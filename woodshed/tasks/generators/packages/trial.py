"""Try one candidate in boxes: find the tests that the change breaks, write the task, grade it as it will be graded.

A candidate becomes a task only if the changed package can be imported and its tests collected, if the change makes at
least one test fail because of the code and leaves at least one passing, if the task on disk scores 0 untouched or
emptied and 1 with the reference solution, and if nothing in it leaks the answer.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar

from woodshed.grading.pytest_phases import Phase, run_phases
from woodshed.grading.results import TestRun
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, Sandbox, Snapshot
from woodshed.sandbox.services import fork_box, start_services
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.changes.partition import Splits, unplanned
from woodshed.tasks.generators.prompts.sufficiency import read_instruction
from woodshed.tasks.generators.prompts.write import Facts, Shown, Writer
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.dependencies import python_path
from woodshed.tasks.packages.prepare import WORKDIR, Suite, coarse, cost, package_spec, suite_files
from woodshed.tasks.packages.workspace import is_surrounding
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.validate.leaks import scan_task
from woodshed.tasks.validate.reasons import defined_names, wrong_reason
from woodshed.tasks.validate.root_leaks import scan_root

from .guards import Guard, Imports, guard
from .proof import Proof, difference, prove, python_variants
from .report import Rejected
from .save import PYTHON_FORM, Draft, Form, is_test_module, save_draft

_COLLECTED = (0, 1, 5)
"""Exit statuses of a pytest run that only collects: all collected, some files could not be, no test was run."""


@dataclass
class Trial:
    """Tries the candidates of one package; ``close`` it afterwards.

    ``workspace``: the package in the state in which its tests pass. ``kept``: slug -> task, of the tasks made so far;
    combinations are made of them. Methods that hold for Python only are overridden in ``node_trial.py``.
    """

    form: ClassVar[Form] = PYTHON_FORM

    settings: PackageTaskSettings
    package: Package
    suite: Suite
    workspace: Mapping[str, bytes]
    backend: Backend
    layers: LayerStore
    layer_names: tuple[str, ...]
    writer: Writer
    planned: Splits | None = None
    kept: dict[str, Task] = field(default_factory=dict)
    _base: Snapshot | None = field(default=None, init=False)
    _uncollected: frozenset[str] = field(default=frozenset(), init=False)
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def splits(self) -> Splits:
        return self.planned or unplanned(self.settings, self.package.name)

    async def close(self) -> None:
        if self._base is not None:
            await self.backend.drop(self._base)
            self._base = None

    async def run(self, candidate: Candidate, out: Path) -> Task:
        """Write the finished task to ``out``. Raises Rejected, and then leaves no ``out``."""
        if any(part.slug not in self.kept for part in candidate.parts):
            raise Rejected("one of its parts was dropped")
        start = {**self.workspace, **candidate.files} if candidate.start is None else candidate.start
        gold = {name: self.workspace[name] for name in candidate.files}
        guarded = self._guard(candidate)
        run = await self._changed_run(candidate, start, guarded.tests)
        broken, whole = self._sorted(candidate, run, defined_names(start, gold))
        slowest = sum(self.suite.tests[t] for t in (*broken, *whole))
        texts = {t: r.text for t, r in run.results.items() if t in broken}
        parts = [self.kept[part.slug] for part in candidate.parts]
        facts = Facts(
            candidate=candidate,
            workspace=self.workspace,
            start=start,
            gold=gold,
            broken=tuple(broken),
            texts=texts,
            parts=parts,
            shown=self.shown(candidate),
            roots=self.package.path,
        )
        text = await self.writer.write(facts)
        if candidate.commit is not None:
            text, start = self._with_tests_shown(text, start, gold, broken)
        draft = Draft(
            candidate=candidate,
            package=self.package,
            workspace=self.workspace,
            start=start,
            gold=gold,
            broken=broken,
            whole=whole,
            seconds=slowest,
            layers=self.layer_names,
            test_timeout=self.settings.test_timeout_sec,
            instruction=text,
        )
        try:
            draft, task = self._without_leaks(draft, save_draft(draft, out, self.form), out)
            # exercises ask for common knowledge, some of which is in the standard library
            elsewhere = [] if candidate.kind == "exercise" else await asyncio.to_thread(scan_root, task, self.layers)
            if elsewhere:
                raise Rejected("a dependency or a program of the box holds the answer")
            quality = guarded.quality(len(broken) + len(whole), len(self.suite.tests))
            functions = {f.place: f.tests for f in candidate.functions}
            proof = await self._prove(task, functions)
            return save_draft(draft, out, self.form, quality | proof.quality, proof.own_values)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)
            raise

    def _with_tests_shown(
        self, text: str, start: Mapping[str, bytes], gold: Mapping[str, bytes], broken: Sequence[str]
    ) -> tuple[str, Mapping[str, bytes]]:
        """Return (instruction, workspace) of a commit's task, with enough of its tests to know what they require.

        Data and helpers of the tests are always added to the workspace. If the instruction does not suffice, it quotes
        the tests; if they are too long for that, they are added to the workspace (``replay.show_tests``).
        """
        changed = {n: d for n, d in self.workspace.items() if self.form.is_test(self.package, n) and start.get(n) != d}
        files = {test.partition("::")[0] for test in broken}
        start = {**start, **{n: d for n, d in changed.items() if n not in files and not is_test_module(n)}}
        if not self.settings.replay.show_tests:
            return text, start
        reading = read_instruction(
            instruction=text,
            start=start,
            gold=gold,
            tests={n: changed[n] for n in files if n in changed},
            failing=broken,
        )
        if reading.suffices:
            return text, start
        if shown := reading.shown():
            return text.rstrip("\n") + shown, start
        return text, {**start, **{n: d for n, d in changed.items() if n in files}}

    def _without_leaks(self, draft: Draft, task: Task, out: Path) -> tuple[Draft, Task]:
        """The task without documentation that holds its answer. Raises Rejected if any other file holds it."""
        leaks = {leak.path for leak in scan_task(task)}
        if leaks and all(is_surrounding(path) for path in leaks):
            draft = replace(draft, start={n: d for n, d in draft.start.items() if n not in leaks})
            shutil.rmtree(out)
            task = save_draft(draft, out, self.form)
            leaks = {leak.path for leak in scan_task(task)}
        if leaks:
            raise Rejected("the answer leaks")
        return draft, task

    def _guard(self, candidate: Candidate) -> Guard:
        """The tests that decide what the change breaks and that a fix must pass."""
        must = dict.fromkeys(test for f in candidate.functions for test in f.tests if candidate.takes_all_tests)
        for part in candidate.parts:  # every test that a part broke must fail here too
            must |= dict.fromkeys(self.kept[part.slug].info.fail_to_pass)
        return guard(
            self.suite,
            candidate.functions,
            candidate.files,
            self.imports,
            must=tuple(must),
            most=self.settings.max_tests,
            seconds=self.settings.guard_seconds,
        )

    @cached_property
    def imports(self) -> Imports:
        """The import graph of the workspace."""
        return Imports(self.workspace, self.package.path)

    async def _changed_run(self, candidate: Candidate, start: Mapping[str, bytes], tests: Sequence[str]) -> TestRun:
        if not tests:
            raise Rejected("no test runs it")
        is_test = self.form.is_test
        graded = {n: d for n, d in start.items() if not is_test(self.package, n)}
        graded |= {n: d for n, d in self.workspace.items() if is_test(self.package, n)}
        slowest = 5.0 + 8 * max(self.suite.tests[t] for t in tests)
        files = sorted({t.partition("::")[0] for t in tests})
        changed, collecting = difference(self.workspace, graded), difference(graded, start)
        whole = 90.0 + 20 * sum(self.suite.tests[t] for t in tests)
        run, collected = await self.runs(
            [
                Phase(files, tests, *changed, whole, slowest, stop_at="hang"),
                Phase(self.test_files(start), (), *collecting, 60.0),
            ]
        )
        if run.detail.startswith("timed out"):
            raise Rejected("the run hangs")
        if any("TimeLimit" in result.text for result in run.results.values()):
            raise Rejected("a test hangs")
        if not run.results:
            given = candidate.commit is not None or candidate.instance
            raise Rejected("no test still passes" if given else "the package no longer imports")
        if not run.complete:
            raise Rejected("the run ends early")
        if collected.status not in _COLLECTED or not uncollected(collected) <= self._uncollected:
            raise Rejected("tests can no longer be collected")
        return run

    def _sorted(self, candidate: Candidate, run: TestRun, defined: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return (failing tests, passing tests), in an order that is independent of measured times. Raises Rejected."""
        about = {test for f in candidate.functions for test in f.tests}
        broken = [t for t, r in run.results.items() if r.status in ("failed", "error")]
        whole = [t for t, r in run.results.items() if r.status == "passed"]
        texts = {t: run.results[t].text for t in broken}
        if candidate.start is not None:  # tests of a commit may need what it defines before they can be collected
            reasons = {p.partition(": ")[0]: p for p in run.problems}
            lost = [t for t in self.suite.tests if t in about and t not in run.results]
            broken += [t for t in lost if t.partition("::")[0] in reasons]
            texts |= {t: reasons[t.partition("::")[0]] for t in broken if t in lost}
        if not broken:
            raise Rejected("no test fails")
        if not whole and candidate.kind != "exercise":  # nothing works yet in an exercise
            raise Rejected("no test still passes")
        if any(wrong_reason(text, defined, self.form.grader) for text in texts.values()):
            raise Rejected("a test fails for another reason")
        for part in candidate.parts:
            if not set(self.kept[part.slug].info.fail_to_pass) <= set(broken):
                raise Rejected("one change hides another")
        broken.sort()
        whole.sort(key=lambda test: (test not in about, test))  # tests that run the function stay first
        return broken, whole

    def shown(self, candidate: Candidate) -> Shown | None:
        """Return the parts of non-Python code that the instruction shows; None for Python."""
        return None

    def test_files(self, workspace: Mapping[str, bytes]) -> list[str]:
        """All test files of a workspace."""
        return suite_files(self.package, workspace)

    def variants(self, path: str, before: bytes, after: bytes) -> list[tuple[str, bytes]]:
        """Mutations in the language of the package; see ``Variants``."""
        return python_variants(path, before, after)

    def guesses(self, task: Task) -> bool:
        """Return whether ``prove`` must tell fixes from guesses; not for exercises, whose tests are a benchmark's."""
        return task.info.kind != "exercise"

    def _least_score(self, task: Task) -> float:
        """Return the required mutation score; 0 for exercises, whose tests are a benchmark's."""
        return 0.0 if task.info.kind == "exercise" else self.settings.min_mutation_score

    async def _prove(self, task: Task, functions: Mapping[str, Sequence[str]]) -> Proof:
        box = await self.fork()
        try:
            return await prove(
                task=task,
                run=partial(self._phases, box),
                base=self.workspace,
                most_mutants=self.settings.mutants,
                variants=self.variants,
                guesses=self.guesses(task),
                functions=functions,
                least_score=self._least_score(task),
            )
        finally:
            await box.close()

    async def fork(self) -> Sandbox:
        """Fork a box with the unchanged package, its bytecode and its services; the caller closes it."""
        async with self._opening:
            base = self._base = self._base or await self._open()
        return await fork_box(self.backend, base, self.package.start)

    async def _open(self) -> Snapshot:
        """Make the snapshot that all boxes are forked from: the workspace and the bytecode of everything in it."""
        paths = tuple(self.layers.path(name) for name in self.layer_names)
        limit = self.settings.suite_seconds
        box = await self.backend.create(package_spec(self.package, paths, self.workspace, limit))
        try:
            collecting = Phase(self.test_files(self.workspace), (), timeout=limit, bytecode=True)
            (run,) = await self._phases(box, [collecting])
            base = await box.snapshot("fs")
            if self.package.start:  # after the snapshot, which must not hold files of services that end with this box
                try:
                    await start_services(box, self.package.start)
                    (run,) = await self._phases(box, [collecting])
                except BaseException:
                    await self.backend.drop(base)
                    raise
            self._uncollected = uncollected(run)
            return base
        finally:
            await box.close()

    async def stable_suite(self, files: Sequence[str]) -> Suite:
        """The tests of ``files`` that pass in two runs of opposite order, with their times. Raises Rejected."""
        first, second = await self.runs(
            [
                Phase(files, None, timeout=self.settings.suite_seconds, test_timeout=20.0, reverse=again, fresh=again)
                for again in (False, True)
            ]
        )
        if not first.complete or not second.complete:
            raise Rejected("its suite does not run to its end")
        stable = {
            t: coarse(cost(r))
            for t, r in first.results.items()
            if r.status == "passed" and t in second.results and second.results[t].status == "passed"
        }
        return Suite(package=self.package.name, tests=stable, functions=(), unstable={}, seconds=first.seconds)

    async def runs(self, phases: list[Phase]) -> list[TestRun]:
        """Run the phases in a box of their own."""
        box = await self.fork()
        try:
            return await self._phases(box, phases)
        finally:
            await box.close()

    async def _phases(self, box: Sandbox, phases: list[Phase]) -> list[TestRun]:
        return await run_phases(box, phases, path=python_path(self.package, WORKDIR), workdir=WORKDIR)


def uncollected(run: TestRun) -> frozenset[str]:
    """Files that the run could not collect."""
    return frozenset(problem.partition(": ")[0] for problem in run.problems)
