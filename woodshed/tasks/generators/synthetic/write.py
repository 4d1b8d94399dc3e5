"""Write synthetic tasks as Harbor task directories.

``RUN_TESTS`` is the test program in every workspace: short and always the same, as policies read it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from woodshed.record.task import Task, TaskError, TaskInfo, save_task

from .function import VISIBLE
from .spec import SyntheticSpec

RUN_TESTS = '''"""Run the cases of every module: print PASS and their number, or the first failure."""
import json
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, '')


class Timeout(BaseException):
    pass


def stop(signum, frame):
    raise Timeout


def clip(text, width):
    return text if len(text) <= width else text[:width - 2] + '..'


def main():
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.3, 0.1)
    with open('cases.json') as file:
        modules = json.load(file)
    passed = 0
    for module, function, cases in modules:
        for args, want in cases:
            call = function + '(' + ', '.join(map(repr, args)) + ')'
            try:
                got = getattr(__import__(module), function)(*args)
                good = got == want and type(got) is type(want)
                shown = repr(got)
            except BaseException as error:
                good = False
                shown = type(error).__name__
            if not good:
                print('FAIL ' + module)
                print(clip(call, 44))
                print('want ' + clip(repr(want), 28))
                print('got ' + clip(shown, 28))
                return 1
            passed += 1
    print('PASS', passed)
    return 0


sys.exit(main())
'''


COMBINE = "combine"
"""``generator`` in the provenance of synthetic tasks with several bugs; the same as for combined package changes."""

_RUN_TESTS = RUN_TESTS.encode()
_TEST_SH = (
    b"#!/bin/sh\n# For other Harbor tools; Woodshed's own grader calls the functions out of process instead.\n"
    b'cd "${WORKDIR:-/workspace}" || exit 1\n'
    b'cp "$(dirname "$0")/cases.harbor.json" cases.json && cp "$(dirname "$0")/run_tests.py" .\n'
    b"mkdir -p /logs/verifier\n"
    b"if python run_tests.py; then echo 1; else echo 0; fi | tail -n 1 > /logs/verifier/reward.txt\n"
)


def write_synthetic(spec: SyntheticSpec, path: Path) -> Task:
    """Write the task directory of ``spec`` and load it. Cases that only grading may know are in ``tests/`` alone."""
    start, whole = spec.sources(repaired=False), spec.sources(repaired=True)
    everything = list(zip(spec.modules, spec.functions))
    every_case, visible = (
        _json([[m, f.name, [[c.args, c.want] for c in f.cases[:count]]] for m, f in everything])
        for count in (None, VISIBLE)
    )
    graded = {m: {"function": f.name, "cases": [[c.args, c.want] for c in f.cases]} for m, f in everything}
    info = TaskInfo(
        family="synthetic",
        split=spec.split,
        key=" + ".join(spec.functions[bug.module].key for bug in spec.bugs),
        grader="cases",
        kind="+".join(spec.kinds),
        submission=tuple(start),
        fail_to_pass=tuple(f"{spec.modules[bug.module]}::{number}" for bug in spec.bugs for number in bug.failing),
        pass_to_pass=tuple(_passing(spec)),
        test_command="python run_tests.py",
        timeout_sec=5.0,
        provenance={"generator": COMBINE} if len(spec.bugs) > 1 else {},
    )
    return save_task(
        path,
        name=spec.name,
        instruction=f"fix: {' '.join(spec.modules)}",
        info=info,
        workspace={
            **{name: source.encode() for name, source in start.items()},
            "run_tests.py": _RUN_TESTS,
            "cases.json": visible,
        },
        tests={
            "test.sh": _TEST_SH,
            "cases.json": _json(graded),
            "cases.harbor.json": every_case,
            "run_tests.py": _RUN_TESTS,
        },
        solution={name: source.encode() for name, source in whole.items() if source != start[name]},
    )


def bugs_of(task: Task) -> tuple[str, ...]:
    """Kind of each bug of a synthetic task, sorted."""
    return tuple(task.info.kind.split("+"))


def solution_edit(task: Task) -> tuple[str, int, str]:
    """Return (path, 1-based line, its text) of the reference fix. Raises TaskError unless it changes one line."""
    before, after = task.workspace_files(), task.solution_files()
    edits = []
    for path, fixed in after.items():
        old, new = before.get(path, b"").decode().split("\n"), fixed.decode().split("\n")
        if len(old) != len(new):
            raise TaskError(f"{task.path}: the solution of {path} changes the number of lines")
        edits += [(path, number, b) for number, (a, b) in enumerate(zip(old, new), 1) if a != b]
    if len(edits) != 1:
        raise TaskError(f"{task.path}: the solution changes {len(edits)} lines, expected one")
    return edits[0]


def _passing(spec: SyntheticSpec) -> list[str]:
    ids = []
    failing_in = {bug.module: bug.failing for bug in spec.bugs}
    for number, (module, function) in enumerate(zip(spec.modules, spec.functions)):
        failing = failing_in.get(number, ())
        ids += [f"{module}::{i}" for i in range(len(function.cases)) if i not in failing]
    return ids


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
