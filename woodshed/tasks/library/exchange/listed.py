"""Check that the tests of an instance behave here as it lists them: before and after the fix, in both orders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from woodshed.grading.pytest_grader import run_pytest
from woodshed.grading.pytest_phases import Phase
from woodshed.grading.results import TestRun
from woodshed.sandbox.protocol import Sandbox
from woodshed.tasks.generators.packages.proof import difference
from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.dependencies import python_path
from woodshed.tasks.packages.prepare import WORKDIR, coarse

from .instances import Instance

_ID = re.compile(r"[^\s:][^:]*\.py::\S.*", re.DOTALL)
_TEST_SECONDS = 20.0


@dataclass(frozen=True)
class Listed:
    """The tests that are used, in the order of the instance. ``seconds``: test -> coarse time; ``dropped``: number of
    ``PASS_TO_PASS`` tests that do not pass here."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    seconds: Mapping[str, float]
    dropped: int


def check_ids(instance: Instance, tests: frozenset[str]) -> tuple[str, ...]:
    """Return the tests that can be run: all of ``FAIL_TO_PASS``, and ``PASS_TO_PASS`` tests in the files ``tests``.

    Raises Rejected if a list is empty, an id is not one of pytest, or a FAIL_TO_PASS test is in no test file.
    """
    if not instance.fail_to_pass:
        raise Rejected("FAIL_TO_PASS is empty")
    if not instance.pass_to_pass:
        raise Rejected("PASS_TO_PASS is empty")
    for test in instance.fail_to_pass:
        if not _ID.fullmatch(test):
            raise Rejected(f"its tests are not named as pytest names them (path::test): {test[:120]}")
        if test.partition("::")[0] not in tests:
            raise Rejected(f"a FAIL_TO_PASS test is in no test file that was found: {test[:120]}")
    others = [t for t in instance.pass_to_pass if t.partition("::")[0] in tests and t not in instance.fail_to_pass]
    return (*instance.fail_to_pass, *others)


def phases(
    tests: Sequence[str], after: Mapping[str, bytes], before: Mapping[str, bytes], seconds: float
) -> list[Phase]:
    """Four runs in a box that holds ``after``: of ``after`` in both orders, then of ``before`` in both orders. The
    second of each pair has a new interpreter. ``seconds``: limit of one run."""
    files = sorted({t.partition("::")[0] for t in tests})
    write, delete = difference(after, before)

    def phase(write: Mapping[str, bytes], delete: Sequence[str], reverse: bool) -> Phase:
        return Phase(
            files=files,
            ids=tests,
            write=write,
            delete=delete,
            timeout=seconds,
            test_timeout=_TEST_SECONDS,
            reverse=reverse,
            fresh=reverse,
        )

    return [phase({}, (), False), phase({}, (), True), phase(write, delete, False), phase({}, (), True)]


async def run_listed(box: Sandbox, package: Package, tests: Sequence[str], seconds: float) -> TestRun:
    """Run the tests once in a box that holds the repaired workspace."""
    files = sorted({t.partition("::")[0] for t in tests})
    return await run_pytest(
        box,
        files,
        tests,
        path=python_path(package, WORKDIR),
        workdir=WORKDIR,
        timeout=seconds,
        test_timeout=_TEST_SECONDS,
    )


def sort_out(instance: Instance, runs: Sequence[TestRun]) -> Listed:
    """Evaluate the four runs of ``phases``. Raises Rejected if they contradict the instance."""
    after, before = runs[:2], runs[2:]
    for run, when in zip(runs, ("after", "after", "before", "before")):
        if not run.complete and (when == "after" or run.detail.startswith("timed out")):
            raise Rejected(f"its tests do not run to their end {when} the fix: {run.detail[:200]}")
    for test in instance.fail_to_pass:
        for run in after:
            if (now := _status(run, test)) != "passed":
                raise Rejected(f"a FAIL_TO_PASS test does not pass after the fix: {test[:120]} {now}{_why(run, test)}")
        for run in before:
            if (now := _status(run, test)) not in ("failed", "error"):
                raise Rejected(f"a FAIL_TO_PASS test does not fail before the fix: {test[:120]} {now}{_why(run, test)}")
    kept = [
        t
        for t in instance.pass_to_pass
        if t not in instance.fail_to_pass and all(_status(run, t) == "passed" for run in runs)
    ]
    if not kept:
        raise Rejected("no PASS_TO_PASS test passes here before and after the fix")
    seconds = {t: coarse(runs[1].results[t].seconds) for t in (*instance.fail_to_pass, *kept)}
    return Listed(instance.fail_to_pass, tuple(kept), seconds, len(instance.pass_to_pass) - len(kept))


def _status(run: TestRun, test: str) -> str:
    """Status of a test: ``error`` if its file cannot be collected, ``missing`` if it was not run."""
    if test in run.results:
        return run.results[test].status
    file = test.partition("::")[0]
    return "error" if any(p.partition(": ")[0] == file for p in run.problems) else "missing"


def _why(run: TestRun, test: str) -> str:
    """The last line of the output of the test, which names the error, in parentheses."""
    text = run.results[test].text if test in run.results else run.detail
    lines = text.strip().splitlines()
    return f" ({lines[-1].strip()[:160]})" if lines else ""
