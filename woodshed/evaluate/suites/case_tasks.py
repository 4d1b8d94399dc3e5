"""Writer of the synthetic tasks of ``cheats`` and ``interaction``: modules of one function each, all cases visible."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.tasks.generators.synthetic import SyntheticSpec
from woodshed.tasks.generators.synthetic.write import RUN_TESTS

from .base import SuiteError

TESTS = ("cases.json", "run_tests.py")
_TEST_SH = b"""#!/bin/sh
# For other Harbor tools; Woodshed's own grader calls the functions out of process instead.
cd "${WORKDIR:-/workspace}" || exit 1
cp "$(dirname "$0")/cases.harbor.json" cases.json && cp "$(dirname "$0")/run_tests.py" .
mkdir -p /logs/verifier
if python run_tests.py; then echo 1; else echo 0; fi | tail -n 1 > /logs/verifier/reward.txt
"""

Cases = list[list[Any]]
"""[arguments, wanted value] of each case of a function."""


@dataclass(frozen=True)
class CaseTask:
    """One task to write. Modules are named without suffix. ``solved``: source of every module in the solution;
    ``start``: initial source of the modules that differ from it. ``failing``: numbers of the cases that fail at the
    start, by module. ``ungraded``: likewise, cases that are visible but not graded."""

    spec: SyntheticSpec
    cases: Mapping[str, Cases]
    start: Mapping[str, str]
    solved: Mapping[str, str]
    failing: Mapping[str, Collection[int]]
    ungraded: Mapping[str, Collection[int]]

    @staticmethod
    def of(spec: SyntheticSpec) -> CaseTask:
        """Return the task as drawn: with every bug, and every case graded."""
        names = spec.modules
        return CaseTask(
            spec=spec,
            cases={n: [[case.args, case.want] for case in f.cases] for n, f in zip(names, spec.functions)},
            start={names[bug.module]: bug.mutation.source for bug in spec.bugs},
            solved={n: f.source for n, f in zip(names, spec.functions)},
            failing={names[bug.module]: bug.failing for bug in spec.bugs},
            ungraded={},
        )

    def write(
        self,
        place: Path,
        *,
        name: str,
        info: Mapping[str, Any],
        instruction: str,
        more: Mapping[str, bytes] | None = None,
        solution: Sequence[str] | None = None,
    ) -> Task:
        """Write the task directory. ``info``: fields of ``TaskInfo`` beyond those that follow from the cases. ``more``:
        further files of the workspace. ``solution``: modules whose solved source is the reference solution; by default
        those in ``start``."""
        called = {module: f.name for module, f in zip(self.spec.modules, self.spec.functions)}
        everything = [[module, called[module], cases] for module, cases in self.cases.items()]
        graded = {module: {"function": called[module], "cases": cases} for module, cases in self.cases.items()}
        failing = [f"{module}::{n}" for module in self.failing for n in sorted(self.failing[module])]
        left_out = {f"{module}::{n}" for module in self.ungraded for n in self.ungraded[module]}
        ids = [f"{module}::{n}" for module, cases in self.cases.items() for n in range(len(cases))]
        start = {**self.solved, **self.start}
        shared = {"run_tests.py": RUN_TESTS.encode()}
        return save_task(
            place,
            name=name,
            instruction=instruction,
            info=TaskInfo(
                split="heldout",
                grader="cases",
                submission=(*(f"{module}.py" for module in self.solved), *TESTS),
                fail_to_pass=tuple(failing),
                pass_to_pass=tuple(id for id in ids if id not in {*failing, *left_out}),
                test_command="python run_tests.py",
                timeout_sec=5.0,
                **info,
            ),
            workspace={
                **{f"{module}.py": text.encode() for module, text in start.items()},
                **shared,
                "cases.json": _json(everything),
                **(more or {}),
            },
            tests={
                **shared,
                "test.sh": _TEST_SH,
                "cases.json": _json(graded),
                "cases.harbor.json": _json(everything),
            },
            solution={
                f"{module}.py": self.solved[module].encode()
                for module in (self.start if solution is None else solution)
            },
        )


def number_of(source: str, default: int) -> int:
    """Return the number of tasks that ``NAME`` (``default``) or ``NAME:NUMBER`` asks for. Raises SuiteError."""
    name, given, number = source.partition(":")
    if given and not (number.isdigit() and 1 <= int(number) <= 1000):
        raise SuiteError(f"--suite {source}: write {name} or {name}:NUMBER, with 1 to 1000 tasks")
    return int(number) if given else default


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
