"""``woodshed tasks check``: run every gate on task directories of any origin, with advice for each failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from woodshed.record.fault import is_shortage
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, SandboxError
from woodshed.tasks.find import task_folders

from .attack import attack
from .gates import check_task, left_open
from .splits import twins_of_heldout

ADVICE = {
    "task": "correct the file that is named",
    "metadata": "add it with fail_to_pass, pass_to_pass and submission (docs/tasks.md)",
    "workspace": "put the files that the agent starts from there",
    "layers": "give the `woodshed tasks build` command again on this machine: finished tasks are kept",
    "fail_to_pass": "list tests that fail before the fix and pass after it in fail_to_pass, or drop the task",
    "pass_to_pass": "list tests that pass before and after the fix in pass_to_pass",
    "ids": "keep each test in one of the two lists",
    "solution": "put the solved files into solution/workspace and let `submission` match them",
    "oracle": "repair the solution, or remove the tests that it cannot pass",
    "stable": "remove the unstable test from the lists",
    "no_op": "remove tests that pass untouched from fail_to_pass",
    "guards": "remove tests that fail untouched from pass_to_pass",
    "reason": "require tests that fail because of the code; correct an id that the test runner does not report",
    "empty": "require a test that runs the code",
    "guess": "require tests that compare what the code computes; see `woodshed exploits` for what passes without",
    "exploit": "run `woodshed exploits` on it for the whole battery; require tests that the exploit does not pass",
    "leak": "remove the file, or the part of it that holds the answer, from the workspace or layer",
    "twin": "drop one of the two: training on one leaks the other, which is evaluated",
    "files": "remove the file from environment/workspace, or store it as text",
}
"""Gate -> what to do if it fails."""

Progress = Callable[[int, int, str], None]


@dataclass
class Verdict:
    """The result for one task directory. ``failures``: gate -> what is wrong. ``unchecked``: gate -> why it could not
    be checked. ``seconds``: wall time."""

    path: Path
    name: str = ""
    fail_to_pass: int = 0
    pass_to_pass: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        """One line."""
        if self.passed:
            counts = f"{self.fail_to_pass} fail-to-pass, {self.pass_to_pass} pass-to-pass"
            return f"ok    {self.path}  {counts}, {self.seconds:.1f} s{left_open(self)}"
        found = [(gate, why.rstrip(". "), ADVICE.get(gate, ADVICE["task"])) for gate, why in self.failures.items()]
        parts = [f"{gate}: {why} -> {advice}" for gate, why, advice in found]
        return " ".join(f"FAIL  {self.path}  {'; '.join(parts)}{left_open(self)}".split("\n"))

    def as_json(self) -> dict[str, Any]:
        advice = {gate: ADVICE.get(gate, ADVICE["task"]) for gate in self.failures}
        return {**vars(self), "path": str(self.path), "passed": self.passed, "advice": advice}


def summary(verdicts: Sequence[Verdict]) -> str:
    """The closing line: how many passed, and how many of those with gates that could not be checked."""
    passed = [v for v in verdicts if v.passed]
    told = f"{len(passed)} of {len(verdicts)} tasks pass every gate"
    if partly := [v for v in passed if v.unchecked]:
        gates = ", ".join(sorted({gate for v in partly for gate in v.unchecked}))
        told += f" that could be checked; {len(partly)} of them have gates that could not be checked ({gates})"
    return told


async def check_folders(
    paths: Iterable[Path],
    backend: Backend,
    layers: LayerStore,
    *,
    parallel: int = 1,
    exploits: int = 0,
    progress: Progress | None = None,
) -> list[Verdict]:
    """A verdict for each task directory in ``paths``, in order. ``exploits``: number of exploits tried on each.

    A damaged task is a failed one. Raises TaskError if a path holds no task directory, SandboxError if the sandbox
    itself fails.
    """
    folders = task_folders(paths)
    turns = asyncio.Semaphore(parallel)
    done = 0

    async def one(folder: Path) -> Verdict:
        nonlocal done
        async with turns:
            verdict = await _check(folder, backend, layers, exploits)
        done += 1
        if progress:
            progress(done, len(folders), f"{folder.name}: {', '.join(verdict.failures) or 'ok'}")
        return verdict

    verdicts = list(await asyncio.gather(*map(one, folders)))
    mark_twins(verdicts)
    return verdicts


def mark_twins(verdicts: list[Verdict]) -> None:
    """Run the ``twin`` gate, which compares all tasks with each other."""
    tasks = [Task.load(verdict.path) for verdict in verdicts if "task" not in verdict.failures]
    twins = twins_of_heldout(tasks)
    for verdict in verdicts:
        if verdict.path in twins:
            verdict.failures["twin"] = f"its change is nearly that of the held-out {twins[verdict.path]}"


async def _check(folder: Path, backend: Backend, layers: LayerStore, exploits: int) -> Verdict:
    start = perf_counter()
    verdict = Verdict(folder)
    try:
        task = Task.load(folder)
        info = task.info
        verdict.name = task.name
        verdict.fail_to_pass, verdict.pass_to_pass = len(info.fail_to_pass), len(info.pass_to_pass)
        if "woodshed" not in task.config.get("metadata", {}):
            verdict.failures["metadata"] = "task.toml has no [metadata.woodshed] table, which names the required tests"
        elif not task.workspace.is_dir():
            verdict.failures["workspace"] = "there is no environment/workspace; docker images are not run here"
        elif missing := [name for name in info.layers if name not in layers.names()]:
            verdict.failures["layers"] = f"dependency layer {missing[0]} is not on this machine"
        else:
            report = await check_task(task, backend, layers)
            verdict.failures, verdict.unchecked = report.failures, report.unchecked
            if exploits and report.passed:
                await _attack(task=task, exploits=exploits, backend=backend, layers=layers, verdict=verdict)
    except TaskError as error:
        verdict.failures["task"] = str(error)
    except BoxError as error:  # the task's code may have ended its box
        failure = in_trusted_box(error)
        if failure is not error:
            raise failure from error
        verdict.failures["task"] = str(error)
    except OSError as error:
        if is_shortage(error):
            raise SandboxError(f"{folder}: this machine cannot check it: {error}") from error
        verdict.failures["task"] = str(error)
    verdict.seconds = perf_counter() - start
    return verdict


async def _attack(task: Task, exploits: int, backend: Backend, layers: LayerStore, verdict: Verdict) -> None:
    """Run the ``exploit`` gate: a sample of the battery, drawn by the task's name."""
    if task.info.kind == "exercise":
        verdict.unchecked["exploit"] = "its tests are a benchmark's"
    elif task.withheld or task.info.grader == "install":
        verdict.unchecked["exploit"] = "there is no solution to show what is rewarded" if task.withheld else "no code"
    elif why := await attack(task, exploits, backend, layers):
        verdict.failures["exploit"] = why
