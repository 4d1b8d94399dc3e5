"""The ``node`` grader: like the ``pytest`` grader, for JavaScript tests and with a runner for Node.

Each test file runs in a process of its own, which reports each result as a frame on a separate channel (``runner.js``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from woodshed.grading.altered import Altering
from woodshed.grading.other_constants import KINDS
from woodshed.grading.pytest_grader import TESTS_PREFIX, grade_by_tests, test_timeout
from woodshed.grading.results import TestResult, TestRun, how_it_ended, read_run
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.protocol import Sandbox

from .alter import alter, imported, literals, other, recording
from .screen import screen

_PARTS = ("guard.js", "values.js", "frameworks.js", "runner.js")
REPORTER = (
    "data:text/javascript,const heard=globalThis.woodshed_reporter;delete globalThis.woodshed_reporter;"
    "export default async function*(events){for await(const event of events)heard(event)}"
)
_ASSERTIONS = ("chai", "expect.js", "should", "must", "unexpected", "expect", "sinon", "power-assert")
_TAPE = re.compile(r"""(?:require\(\s*|from\s+)['"]tape['"]""")
_NODE_TEST = re.compile(r"""(?:require\(\s*|from\s+)['"]node:test['"]""")
_TDD = re.compile(r"(?m)^\s*suite\s*\(")
_BDD = re.compile(r"(?m)^\s*(?:describe|it|context)\s*\(")
_MAX_OUTPUT = 16 << 20


def framework_of(source: str) -> str:
    """Return ``tape`` or ``node:test`` if a test file loads it, else ``mocha``, whose functions are global."""
    if _TAPE.search(source):
        return "tape"
    return "node:test" if _NODE_TEST.search(source) else "mocha"


async def run_node(
    box: Sandbox,
    files: Mapping[str, bytes],
    ids: Collection[str] | None,
    *,
    workdir: str = "/workspace",
    timeout: float = 60.0,
    test_timeout: float = 10.0,
    trace: Sequence[str] = (),
    values: bool = False,
) -> TestRun:
    """Run the test ``files`` (relative to ``workdir``, with their text) as the box's ordinary user.

    Every test of a file runs; results of tests that are not in ``ids`` are left out (an id without ``[...]`` selects
    all ids that extend it). ``problems`` are the files that did not run to their end. ``timeout``: seconds for all
    files, ``test_timeout`` for one test that waits. ``trace``: absolute paths whose executed functions are recorded for
    each test, as (file, ``start:end`` in UTF-16 units, 1 if the function has a name, else 0); ``values``: altered tests
    record values. With ``node:test`` both are recorded for the whole file, with each of its tests.
    """
    start = perf_counter()
    results: dict[str, TestResult] = {}
    details: list[str] = []
    problems: list[str] = []
    complete, collected = True, 0
    for name in sorted(files):
        left = timeout - (perf_counter() - start)
        if left <= 0:
            return TestRun(results, False, f"timed out after {timeout:g} s", 0, perf_counter() - start)
        run = await _run_file(
            box, name, files[name].decode("utf-8", "replace"), workdir, left, test_timeout, trace, values
        )
        results |= run.results
        collected += run.collected
        complete = complete and run.complete
        details += [run.detail] if run.detail else []
        problems += run.problems or ([] if run.complete else [f"{name}: {run.detail}"])
    if ids is not None:
        results = {i: r for i, r in results.items() if i in ids or i.partition("[")[0] in ids}
    return TestRun(results, complete, "; ".join(details), collected, perf_counter() - start, tuple(problems))


async def _run_file(
    box: Sandbox,
    name: str,
    source: str,
    workdir: str,
    timeout: float,
    test_timeout: float,
    trace: Sequence[str],
    values: bool,
) -> TestRun:
    nonce = secrets.token_hex(16)
    framework = framework_of(source)
    request = request_of(name, source, workdir, test_timeout) | {"nonce": nonce, "trace": list(trace), "values": values}
    options = ["--no-warnings"] + (["--test-reporter", REPORTER] if framework == "node:test" else [])
    # Descriptor 3 is the channel; what tests print goes nowhere.
    command = ["sh", "-c", 'exec 3>&1 1>/dev/null; exec node "$@"', "sh", *options, "-e", runner_source()]
    start = perf_counter()
    done = await box.exec(
        command, stdin=json.dumps(request).encode(), cwd=workdir, timeout=timeout, max_output=_MAX_OUTPUT
    )
    run = read_run(done.stdout, nonce, how_it_ended(done, timeout), done.stderr, perf_counter() - start)
    if framework == "node:test":  # it reports a test after others have begun, so records belong to the file
        covered = sorted({place for result in run.results.values() for place in result.covered})
        seen = [value for result in run.results.values() for value in result.seen]
        for result in run.results.values():
            result.covered, result.seen = covered, seen
    return run


def request_of(name: str, source: str, workdir: str, test_timeout: float) -> dict[str, Any]:
    """Return the runner's request for a test file, without the nonce of the run."""
    return {
        "name": name,
        "file": f"{workdir}/{name}",
        "framework": framework_of(source),
        "ui": "tdd" if _TDD.search(source) and not _BDD.search(source) else "bdd",
        "test_timeout": test_timeout,
        "trace": [],
        "values": False,
        "assertions": [a for a in _ASSERTIONS if f"'{a}'" in source or f'"{a}"' in source],
    }


@cache
def runner_source() -> str:
    """Return the source of the program that runs in the box."""
    folder = Path(__file__).parent
    parts = [(folder / name).read_text("utf-8") for name in _PARTS]
    return "(() => {\n'use strict';\n" + "".join(parts) + "\n})();"


async def grade_node(task: Task, box: Sandbox, submission: Mapping[str, bytes] | None = None) -> Outcome:
    """Grade the files in ``box`` as ``grade_pytest`` does. Raises TaskError if tree-sitter is not installed."""
    return await grade_by_tests(task, box, submission, screen, run_node_ids)


async def run_node_ids(task: Task, box: Sandbox, ids: Sequence[str]) -> TestRun:
    """Run the tests ``ids`` of a task; their files are in ``box`` already."""
    tests, names = task.test_files(), {i.partition("::")[0] for i in ids}
    files = {n: tests[TESTS_PREFIX + n] for n in names if TESTS_PREFIX + n in tests}
    return await run_node(
        box, files, ids, workdir=task.info.workdir, timeout=task.info.timeout_sec, test_timeout=test_timeout(task)
    )


async def _run_altered(task: Task, box: Sandbox, files: Mapping[str, bytes], ids: Sequence[str]) -> TestRun:
    return await run_node(
        box,
        files,
        ids,
        workdir=task.info.workdir,
        timeout=len(KINDS) * task.info.timeout_sec,
        test_timeout=test_timeout(task),
        values=True,
    )


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


NODE = Altering(alter, _run_altered, literals, other, _text, imported=imported, recording=recording)
