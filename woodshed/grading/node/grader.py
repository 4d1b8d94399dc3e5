"""The ``node`` grader: as for pytest, with the grader's own copies of JavaScript tests and the runner for Node."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.grading.altered import Altering
from woodshed.grading.pytest_grader import TESTS_PREFIX, grade_by_tests, test_timeout
from woodshed.grading.results import TestRun
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.protocol import Sandbox

from .alter import alter, literals, other
from .run import run_node
from .screen import screen


async def grade_node(task: Task, box: Sandbox, submission: Mapping[str, bytes] | None = None) -> Outcome:
    """Grade what lies in ``box`` as ``grade_pytest`` does. TaskError where tree-sitter is not installed."""
    return await grade_by_tests(task, box, submission, screen, run_node_ids)


async def run_node_ids(task: Task, box: Sandbox, ids: Sequence[str]) -> TestRun:
    """The tests ``ids`` of a task, which are laid in ``box``."""
    tests, names = task.test_files(), {i.partition("::")[0] for i in ids}
    files = {n: tests[TESTS_PREFIX + n] for n in names if TESTS_PREFIX + n in tests}
    return await run_node(
        box, files, ids, workdir=task.info.workdir, timeout=task.info.timeout_sec, test_timeout=test_timeout(task)
    )


async def _run_altered(task: Task, box: Sandbox, files: Mapping[str, bytes], ids: Sequence[str]) -> TestRun:
    return await run_node(
        box, files, ids, workdir=task.info.workdir, timeout=task.info.timeout_sec, test_timeout=test_timeout(task),
        values=True,
    )  # fmt: skip


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


NODE = Altering(alter, _run_altered, literals, other, _text)
