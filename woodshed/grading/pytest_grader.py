"""The ``pytest`` grader: runs the required tests from the grader's own copies in a box no process of the agent touched.

``verify.py`` creates the box and copies the allow-listed files of the submission into it. This module undoes changes to
configuration, lays the tests and the pytest configuration from the task's ``tests/workspace`` over it, and starts the
runner (``pytest_runner.py``), which reports each result on its own channel. Every required id must have *passed*. No
test passes in a run that ends early or whose exit status contradicts its results; a test without a result does not pass
either.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from time import perf_counter

from woodshed.record.python_source import parse_python
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.sandbox.protocol import Sandbox

from .pytest_screen import screen
from .pytest_screen_box import screen_in_box
from .results import TestRun, how_it_ended, read_run

TESTS_PREFIX = "workspace/"
"""Part of a task's ``tests/`` folder that is laid over the workspace."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


STRAY = _words(
    "conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml tox.ini setup.cfg setup.py pyproject.toml "
    "sitecustomize.py usercustomize.py"
)
STRAY_SUFFIXES = (".pth", ".pyc")
MAX_OUTPUT = 16 << 20


async def run_pytest(
    box: Sandbox,
    files: Sequence[str],
    ids: Sequence[str] | None,
    *,
    path: Sequence[str],
    workdir: str = "/workspace",
    timeout: float = 60.0,
    test_timeout: float = 10.0,
    reverse: bool = False,
    trace: Sequence[str] = (),
    encoder: str = "",
) -> TestRun:
    """Run the tests ``ids`` (None: all) of ``files`` (relative to ``workdir``) as the box's ordinary user.

    An id without parameters selects all tests of its function.

    ``path``: entries of ``sys.path``, the one with pytest first. ``timeout``: seconds for the whole run,
    ``test_timeout`` for one test. ``reverse`` runs the tests in the opposite order. ``trace``: absolute folders
    whose executed functions are recorded for each test. ``encoder``: source with a function ``encode`` for the values
    that altered tests record. Raises SandboxError only if the sandbox itself fails.
    """
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "files": list(files),
        "ids": None if ids is None else list(ids),
        "path": list(path),
        "workdir": workdir,
        "test_timeout": test_timeout,
        "reverse": reverse,
        "trace": list(trace),
        "encoder": encoder,
    }
    start = perf_counter()
    done = await box.exec(
        ["python3", "-I", "-B", "-c", runner_source()],
        stdin=json.dumps(request).encode(),
        cwd=workdir,
        timeout=timeout,
        max_output=MAX_OUTPUT,
    )
    return read_run(done.stdout, nonce, how_it_ended(done, timeout), done.stderr, perf_counter() - start)


async def grade_pytest(task: Task, box: Sandbox, submission: Mapping[str, bytes] | None = None) -> Outcome:
    """Grade the files in ``box``, a fresh box of ``task`` with only the submission put into it.

    ``submission``: the files that crossed (None: they are read from the box), a ``Submission`` if files were deleted.
    Every id of ``fail_to_pass`` and ``pass_to_pass`` must pass. A hang, crash or flood of the submission is a failed
    test; SandboxError is raised only if the sandbox itself fails.
    """
    return await grade_by_tests(task, box, submission, screen, run_pytest_ids, screen_in_box)


async def run_pytest_ids(task: Task, box: Sandbox, ids: Sequence[str]) -> TestRun:
    """Run the tests ``ids`` of a task; their files are in ``box`` already."""
    return await run_pytest(
        box,
        sorted({i.partition("::")[0] for i in ids}),
        ids,
        path=import_path(task),
        workdir=task.info.workdir,
        timeout=task.info.timeout_sec,
        test_timeout=test_timeout(task),
    )


RunIds = Callable[[Task, Sandbox, Sequence[str]], Awaitable[TestRun]]
"""Runs tests of a task by their ids in a box that has their files."""
Screen = Callable[..., list[str]]
"""``screen(changed, *known)``: constructs in the changed files that no honest change needs (``pytest_screen.py``)."""

ScreenInBox = Callable[..., Awaitable[list[str]]]
"""``again(box, found, changed, *known)``: ``found``, with files that the host cannot parse screened in the box."""


async def grade_by_tests(
    task: Task,
    box: Sandbox,
    submission: Mapping[str, bytes] | None,
    screen: Screen,
    run: RunIds,
    again: ScreenInBox | None = None,
) -> Outcome:
    """Do what all graders of tests share: screen, lay the grader's own tests, ``run`` the required ids.

    ``again`` screens in the box the files that only the interpreter there can parse.
    """
    start = perf_counter()
    info = task.info
    required = [*info.fail_to_pass, *info.pass_to_pass]
    if submission is None:
        submission = await box.get(info.submission)
    if clash := _in_the_way(task, submission):
        return Outcome(False, dict.fromkeys(required, "error"), 0.0, f"the submission does not fit: {clash}")
    changed = changed_files(task, submission)
    versions = known_versions(task, changed, submission)
    found = await asyncio.to_thread(screen, changed, *versions)  # takes seconds for large files
    if found and again is not None:
        found = await again(box, found, changed, *versions)
    if found:
        detail = "the submission was refused: " + "; ".join(found[:5])
        return Outcome(False, dict.fromkeys(required, "failed"), perf_counter() - start, detail)
    await lay_tests(task, box, changed)
    outcome = outcome_of(task, await run(task, box, required))
    outcome.seconds = perf_counter() - start
    return outcome


def outcome_of(task: Task, run: TestRun) -> Outcome:
    """Return the verdict on a run of the required tests."""
    required = (*task.info.fail_to_pass, *task.info.pass_to_pass)
    tests = {i: run.results[i].status if i in run.results else "missing" for i in required}
    if not run.complete:
        # Results that an incomplete run reported do not count as passed.
        tests = {i: "error" if s == "passed" else s for i, s in tests.items()}
    resolved = bool(task.info.fail_to_pass) and all(s == "passed" for s in tests.values())
    return Outcome(resolved, tests, run.seconds, run.detail)


def known_versions(
    task: Task, changed: Mapping[str, bytes], submission: Mapping[str, bytes]
) -> tuple[dict[str, bytes], ...]:
    """Return the versions of a submission's files whose constructs are no reason to refuse a changed file: what the
    agent started with, the solution and, if that is withheld, where the code may have been before."""
    known = _start_files(task, submission)
    return known, task.solution_files(), _moved(task, changed, known, submission) if task.withheld else {}


def _moved(
    task: Task, changed: Mapping[str, bytes], known: Mapping[str, bytes], submission: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return for each changed file the former content of all changed and deleted files: its code may come from there.

    A refactoring moves code, and without a solution it is unknown which constructs move where.
    """
    gone = _start_files(task, getattr(submission, "deleted", ()))
    sources = [data for name, data in {**known, **gone}.items() if name in changed or name in gone]
    whole = b"\n".join(data for data in sources if _parses(data))
    return dict.fromkeys(changed, whole)


def _parses(data: bytes) -> bool:
    try:
        parse_python(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def changed_files(task: Task, submission: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a submission that are new or differ from those that the agent started with."""
    known = _start_files(task, submission)
    return {name: data for name, data in submission.items() if known.get(name) != data}


def _start_files(task: Task, names: Iterable[str]) -> dict[str, bytes]:
    paths = {name: task.workspace / name for name in names}
    return {name: path.read_bytes() for name, path in paths.items() if path.is_file()}


async def lay_tests(task: Task, box: Sandbox, submission: Mapping[str, bytes]) -> None:
    """Undo the submission's changes to configuration, then lay the grader's own copies of the tests."""
    prefix = f"{task.info.workdir}/"
    stray = [name for name in submission if is_stray(name)]
    for name in stray:
        await box.delete(prefix + name)
    # A package may have a module with such a name, which an agent only formats.
    own = _start_files(task, stray) | _own_tests(task)
    await box.put({prefix + name: data for name, data in own.items()})


def _own_tests(task: Task) -> dict[str, bytes]:
    return {k.removeprefix(TESTS_PREFIX): v for k, v in task.test_files().items() if k.startswith(TESTS_PREFIX)}


def _in_the_way(task: Task, names: Iterable[str]) -> str:
    """Describe the first clash between a file of the submission and a folder of the tests, or the reverse; else ''."""
    files = set(_own_tests(task))
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    for name in names:
        if name in folders:
            return f"{name} is a folder of the tests"
        if above := files.intersection(map(str, PurePosixPath(name).parents)):
            return f"{name} lies where the tests have the file {min(above)}"
    return ""


def is_stray(name: str) -> bool:
    """Return whether a file could configure the test run or the interpreter; submissions cannot change such files."""
    path = PurePosixPath(name)
    return path.name in STRAY or path.suffix in STRAY_SUFFIXES


def import_path(task: Task) -> tuple[str, ...]:
    """Return the task's ``sys.path`` entries: PYTHONPATH of its ``[environment] env`` (Harbor), else the workdir."""
    value = task.config.get("environment", {}).get("env", {}).get("PYTHONPATH", "")
    return tuple(value.split(":")) if value else (task.info.workdir,)


def test_timeout(task: Task) -> float:
    """Return the time limit of one test in seconds: a third of the run's, so a hanging test leaves time for others."""
    return max(1.0, task.info.timeout_sec / 3)


test_timeout.__test__ = False  # type: ignore[attr-defined]


@cache
def runner_source() -> str:
    """Return the source of the program that runs in the box."""
    return Path(__file__).with_name("pytest_runner.py").read_text("utf-8")
