"""Gates that every task must pass before a policy works on it.

They are the union of what SWE-smith, R2E-Gym and post-mortems of SWE-bench require: fail-to-pass and pass-to-pass
tests, a reference solution that passes twice, an untouched and an emptied workspace that score 0, failures because of
the code, values that only the solution gives, and no answer within the agent's reach. Grading is that of training: in
fresh boxes, by the task's own grader. If the authors of a benchmark withhold the solution (``Task.withheld``), the
report lists the gates that could not be checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from time import perf_counter
from typing import Protocol

from woodshed.grading.crossing import Submission, collected, crossing
from woodshed.grading.heldout import PYTEST, EndlessError, reference
from woodshed.grading.node.grader import NODE, run_node_ids
from woodshed.grading.pytest_grader import RunIds, lay_tests, run_pytest_ids
from woodshed.grading.telling import problem_of
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import box_spec

from .guessing import ENDLESS, cheaply
from .leaks import scan_task
from .reasons import defined_names, names_missing, wrong_reason
from .root_leaks import scan_root

_RUN: dict[str, RunIds] = {"pytest": run_pytest_ids, "node": run_node_ids}
_TYPES = "py pyi txt md rst json jsonl toml cfg ini yaml yml csv tsv xml html css js sh in tmpl typed lock po sql"
TEXT_TYPES = frozenset(f".{kind}" for kind in _TYPES.split())
"""File types that a workspace may hold in any encoding; other files must be UTF-8 text. The leak scan reads both."""


@dataclass
class GateReport:
    """The result of all gates on a task. ``failures``: gate -> what is wrong, empty for a good task. ``unchecked``:
    gate -> why it could not be checked. ``seconds``: wall time."""

    task: str
    failures: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        passed = f"all gates passed{' that could be checked' if self.unchecked else ''}"
        return f"{self.task}: " + ("; ".join(f"{k}: {v}" for k, v in self.failures.items()) or passed) + left_open(self)


def left_open(report: Unchecked) -> str:
    """`` (not checked: GATE (why); ...)``, empty if every gate could be checked."""
    found = "; ".join(f"{gate} ({why})" for gate, why in report.unchecked.items())
    return f" (not checked: {found})" if found else ""


class Unchecked(Protocol):
    """A report with gates that could not be checked: a ``GateReport`` or a ``Verdict``."""

    @property
    def unchecked(self) -> dict[str, str]: ...


async def check_task(task: Task, backend: Backend, layers: LayerStore) -> GateReport:
    """Run every gate and report each one that fails. Raises SandboxError only if the sandbox itself fails."""
    start = perf_counter()
    report = GateReport(task.name)
    info = task.info
    if not info.fail_to_pass:
        report.failures["fail_to_pass"] = "no test tells the bug from the fix"
    if not info.pass_to_pass and task.withheld:  # the tests are those of the benchmark; none can be added
        report.unchecked["pass_to_pass"] = "no test of its authors passes before the change"
    elif not info.pass_to_pass and info.kind not in ("exercise", "install"):  # nothing works yet in these
        report.failures["pass_to_pass"] = "no test guards what works"
    if both := set(info.fail_to_pass) & set(info.pass_to_pass):
        report.failures["ids"] = f"listed as failing and as passing: {min(both)}"

    async def graded(submission: dict[str, bytes]) -> Outcome:
        return await grade(task, submission, backend, layers)

    if task.withheld:
        report.unchecked["oracle"] = "its authors withhold the solution"
    else:
        await _solution(task, graded, report)
    await _untouched(task, graded, report)
    if info.grader in _RUN:
        await _reasons(task, backend, layers, report)
        if task.withheld:
            report.unchecked["guess"] = "there is no solution to compare with"
        elif info.kind != "exercise" and not {"oracle", "solution"} & set(report.failures):
            await _guesses(task, backend, layers, report)
    if info.grader != "install":  # in install tasks, documentation of the setup is not a leak
        _files(task, report)
        if task.withheld:
            report.unchecked["leak"] = "there is no solution to search for, only names of files were looked at"
        elsewhere = [] if info.kind == "exercise" else await asyncio.to_thread(scan_root, task, layers)
        for leak in [*scan_task(task), *elsewhere][:1]:
            report.failures["leak"] = f"{leak.path} holds {leak.share:.0%} of the answer ({leak.kind}): {leak.sample}"
    report.seconds = perf_counter() - start
    return report


Graded = Callable[[dict[str, bytes]], Awaitable[Outcome]]


async def _solution(task: Task, graded: Graded, report: GateReport) -> None:
    gold = task.solution_files()
    crossed = crossing(task.info, gold)
    if not gold or set(crossed) != set(gold):
        missing = sorted(set(gold) - set(crossed))
        report.failures["solution"] = f"{missing[0]} may not be submitted" if missing else "there is none"
        return
    # once alone, and once as an agent's box would hold it
    first, second = await graded(gold), await graded(collected(task, task.workspace_files() | gold))
    if not first.resolved:
        report.failures["oracle"] = f"the solution scores 0: {_bad(first)}"
    elif first.tests != second.tests:
        unstable = [t for t, status in first.tests.items() if second.tests.get(t) != status]
        report.failures["stable"] = f"the solution passes once and then not: {unstable[0]}"


async def _untouched(task: Task, graded: Graded, report: GateReport) -> None:
    workspace = task.workspace_files()
    start = await graded(crossing(task.info, workspace))
    passing = [t for t in task.info.fail_to_pass if start.tests.get(t) == "passed"]
    broken = [t for t in task.info.pass_to_pass if start.tests.get(t) != "passed"]
    unreported = [t for t in task.info.fail_to_pass if start.tests.get(t) == "missing"]
    if unreported and task.info.grader == "pytest" and names_missing(start.detail, _missing_names(task)):
        unreported = []  # they cannot be collected without names that the solution defines
    if start.resolved or passing:
        report.failures["no_op"] = f"passes before anything is fixed: {passing[0] if passing else 'everything'}"
    if broken:
        report.failures["guards"] = f"should pass before the fix and does not: {broken[0]} {start.detail}"
    if unreported:
        report.failures["reason"] = f"does not fail but is not run: {unreported[0]} {start.detail}"
    if task.withheld:  # else the solution is what must pass twice
        again = await graded(crossing(task.info, workspace))
        if unstable := [t for t, status in start.tests.items() if again.tests.get(t) != status]:
            report.failures["stable"] = f"the untouched workspace gives another result each time: {unstable[0]}"
    emptied = await graded(Submission({}, crossing(task.info, workspace)))
    if emptied.resolved:
        report.failures["empty"] = "an empty submission scores"


async def _reasons(task: Task, backend: Backend, layers: LayerStore, report: GateReport) -> None:
    """Run the ``reason`` gate: in the untouched workspace, tests fail because of the code, not of its surroundings."""
    box = await create_box(backend, box_spec(task, layers), task.info.start)
    try:
        await lay_tests(task, box, {})
        failing = task.info.fail_to_pass
        run = await _RUN[task.info.grader](task, box, failing)
    finally:
        await box.close()
    defined = _missing_names(task)
    for test in failing:
        if test in run.results and (why := wrong_reason(run.results[test].text, defined, task.info.grader)):
            report.failures["reason"] = f"{test} fails for another reason than the code under test: {why}"
            return


async def _guesses(task: Task, backend: Backend, layers: LayerStore, report: GateReport) -> None:
    """Run the ``guess`` gate: code that computes nothing must not pass. Not for exercises, tested by a benchmark."""
    how = NODE if task.info.grader == "node" else PYTEST
    try:
        found = await reference(task, backend, layers, how)
        why = problem_of(found) or (await cheaply(task=task, found=found, backend=backend, layers=layers, how=how))[0]
    except EndlessError:
        why = ENDLESS
    if why:
        report.failures["guess"] = why


def _missing_names(task: Task) -> frozenset[str]:
    return defined_names(task.workspace_files(), task.solution_files())


def _files(task: Task, report: GateReport) -> None:
    """Run the ``files`` gate: every workspace file has a known type, is text, or was compiled from its sources."""
    built = task.info.provenance.get("built", "").split(", ")
    for path, data in task.workspace_files().items():
        if path not in built and not is_text(path, data):
            report.failures["files"] = f"{path} is neither of a known type nor text"


def is_text(path: str, data: bytes) -> bool:
    """Return whether a file has a known type, or is UTF-8 text whatever its name."""
    if PurePosixPath(path).suffix in TEXT_TYPES:
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _bad(outcome: Outcome) -> str:
    failed = [f"{test} {status}" for test, status in outcome.tests.items() if status != "passed"]
    return ", ".join(failed[:3]) + (f" ({outcome.detail})" if outcome.detail else "")
