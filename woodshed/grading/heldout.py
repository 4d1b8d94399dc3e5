"""Held-out values for graders that run tests: what the submission answers to inputs that it has not seen.

Tests and submission share a process there, and an agent has read the tests. So passing them is not enough: the failing
tests run once more with altered constants (``pytest_alter.py``, ``node/alter.py``), and the values that they would
have compared must be those of the reference solution. The expected values never enter a box that holds the
submission, and the comparison is on the host. Whoever takes over the test process, equals everything, reads the
caller's expectations or knows the visible answers by heart still has to compute the right ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

from woodshed.record.task import Task
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, Sandbox, SandboxError
from woodshed.sandbox.taskbox import box_spec

from .pytest_alter import KINDS, SAME, THE_END, Kind, alter
from .pytest_grader import TESTS_PREFIX, import_path, lay_tests, run_pytest, test_timeout
from .pytest_only import only
from .results import TestRun

Values = dict[str, list[str]]
"""Test (of an altered file) -> canonical text of the values it saw, in order."""
Expected = dict[str, list[str | None]]
"""The same from the solution; None where it is no plain value or not the same every time."""
Lay = Callable[[Sandbox], Awaitable[None]]

_UNKNOWN = "?"
_END = json.dumps(THE_END)
_ALTERED = re.compile(r"_with_(?:other_)?[a-z]+(?=\.[^./:]+::)")
_FLOAT = re.compile(r"\bf(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_KEPT = 256
_references: OrderedDict[str, Reference] = OrderedDict()


class EndlessError(SandboxError):
    """The tests with other inputs do not come to their end on the solution itself."""


@dataclass(frozen=True)
class Altering:
    """How tests of one kind are altered, and how altered files (relative to the workdir) run in a box.

    ``run`` is given the ids of the altered tests, without parameters, and fills in ``TestResult.seen``. ``only``: what
    of a file is altered, for the tests (by the names of their classes and functions) that are asked for.
    """

    alter: Callable[[str, Kind], str | None]
    run: Callable[[Task, Sandbox, Mapping[str, bytes], Sequence[str]], Awaitable[TestRun]]
    only: Callable[[str, frozenset[str]], str] = lambda source, tests: source


@dataclass(frozen=True)
class Reference:
    """What the solution answers, and of that what tells a fix from a trick (see ``reference_of``)."""

    values: Expected
    telling: Expected


async def held_out(
    task: Task,
    changed: Mapping[str, bytes],
    lay: Lay,
    backend: Backend,
    layers: LayerStore,
    share: float,
    how: Altering | None = None,
) -> str:
    """Why the submission that ``lay`` puts into a box is not believed; empty where it is. ``changed``: its new files.

    At least ``share`` of the values that the reference solution gives must be the same, and as much of those that
    neither the task's own files give nor the visible tests have: else it would do to know the visible answers by heart
    and to leave the rest as it was. ``share`` 0 asks for none. A task whose tests give no values (no constants, only
    objects) cannot be checked so, and is believed. SandboxError where the sandbox fails or the solution's own run does
    not end.
    """
    how = how or PYTEST
    if share == 0 or not altered_tests(task, how):
        return ""
    known = await reference(task, backend, layers, how)
    if not _total(known.values):
        return ""
    seen, _ = await _values(task, KINDS, changed, lay, backend, layers, how)
    if not objection(known, seen, share):
        return ""
    # What the clock decides can be the same twice and then not: the solution answers once more, after the submission.
    later, whole = await _solution_values(task, KINDS, backend=backend, layers=layers, how=how)
    if whole and all(len(later.get(test, ())) == len(values) for test, values in known.values.items()):
        again = Reference(_agreed(known.values, later), _agreed(known.telling, later))
        if _total(known.telling) and not _total(again.telling):
            raise EndlessError(f"{task.path}: every value that tells a fix from a trick is another one each time")
        known = again
        _keep(task, known)
    return objection(known, seen, share)


def objection(known: Reference, seen: Values, share: float) -> str:
    """Why answers that are ``seen`` are not believed, empty where they are."""
    parts = ((known.values, ""), (known.telling, ", that neither the given files nor the visible tests have"))
    for expected, which in parts:
        total, same = _total(expected), _same(expected, seen)
        if same < share * total:
            return f"{total - same} of {total} values differ from the solution's where tests have other inputs{which}"
    return ""


def _total(expected: Expected) -> int:
    return sum(value is not None for values in expected.values() for value in values)


def _same(expected: Expected, seen: Values) -> int:
    return sum(a == b for test, values in expected.items() for a, b in zip(values, seen.get(test, ())) if a is not None)


def _agreed(values: Mapping[str, Sequence[str | None]], again: Values) -> Expected:
    """``values`` without those that are others in ``again``, or not there."""
    return {
        test: [a if a == b and a != _UNKNOWN else None for a, b in zip(of_test, again.get(test, ()))]
        for test, of_test in values.items()
    }


def altered_tests(task: Task, how: Altering | None = None, kinds: Sequence[Kind] = KINDS) -> dict[str, bytes]:
    """Altered copies of the files with failing tests, beside them and under names of their own."""
    how = how or PYTEST
    files: dict[str, bytes] = {}
    tests = task.test_files()
    for name in sorted({test.partition("::")[0] for test in task.info.fail_to_pass}):
        source = tests.get(TESTS_PREFIX + name, b"").decode("utf-8", "replace")
        source = how.only(source, _names(task.info.fail_to_pass))
        for kind in kinds:
            if (text := how.alter(source, kind)) is not None and text.encode() not in files.values():
                files[altered_name(name, kind)] = text.encode()
    return files


def altered_ids(task: Task, kinds: Sequence[Kind] = KINDS) -> list[str]:
    """The tests of ``altered_tests`` that stand for failing ones, without parameters."""
    return sorted({
        test.partition("[")[0].replace(name, altered_name(name, kind), 1)
        for test in task.info.fail_to_pass
        for name in [test.partition("::")[0]]
        for kind in kinds
    })  # fmt: skip


def _names(tests: Iterable[str]) -> frozenset[str]:
    """Names of the functions that tests are, and of their classes."""
    return frozenset(name for test in tests for name in test.partition("[")[0].split("::")[1:])


def altered_name(name: str, kind: Kind) -> str:
    """Where the altered copy of a test file lies."""
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}_with_{'' if kind == SAME else 'other_'}{kind}{path.suffix}"))


async def reference(task: Task, backend: Backend, layers: LayerStore, how: Altering) -> Reference:
    """What a submission is compared with: what the solution answers, asked twice, what the start answers, and what the
    visible tests compare. Kept by the task's digest.

    Raises EndlessError: nobody is believed because a busy machine cut the solution's run short.
    """
    if (known := _references.get(task.digest)) is not None:
        _references.move_to_end(task.digest)
        return known
    solution = partial(_solution_values, task, backend=backend, layers=layers, how=how)
    first, second, visible = [await _whole(partial(solution, kinds), task) for kinds in (KINDS, KINDS, (SAME,))]
    given, _ = await _twice(partial(_trusted_values, task, KINDS, _nothing, backend, layers, how))
    found = reference_of(first, second, given, visible)
    _keep(task, found)
    return found


async def answers(
    task: Task, submission: Mapping[str, bytes], backend: Backend, layers: LayerStore, how: Altering
) -> Values:
    """What files laid over the workspace answer to other inputs."""

    async def lay(box: Sandbox) -> None:
        await box.put({f"{task.info.workdir}/{name}": data for name, data in submission.items()})

    return (await _values(task, KINDS, submission, lay, backend, layers, how))[0]


def plain(expected: Expected) -> list[str]:
    """The computed values: not ends of tests, and not statuses."""
    known = (value for values in expected.values() for value in values if value is not None)
    return [value for value in known if value != _END and not value.startswith("status ")]


async def _whole(run: Callable[[], Awaitable[tuple[Values, bool]]], task: Task) -> Values:
    found, whole = await _twice(run)
    if not whole:
        raise EndlessError(
            f"{task.path}: the solution's tests do not end on other inputs, so no submission can be judged by them; "
            "where that is so on an idle machine too, set grading.held_out_share to 0"
        )
    return found


async def _twice(run: Callable[[], Awaitable[tuple[Values, bool]]]) -> tuple[Values, bool]:
    """``run``, and once more where it was cut short: given code may never end, a busy machine is idle later."""
    found, whole = await run()
    return (found, whole) if whole else await run()


def reference_of(first: Values, second: Values, given: Values, visible: Values) -> Reference:
    """Of two answers of the solution to other inputs, one of the files that the task starts with, and the solution's
    to the ``visible`` inputs. A value tells a fix from a trick where it is not what the given files answer, nor what
    the same test has at the same place with the inputs that everybody may know."""
    values = _agreed(first, second)
    shown = {place: visible[test] for test, place in _places(visible).items()}
    telling = {
        test: _others(_others(values[test], given.get(test, [])), shown.get(place, []))
        for test, place in _places(values).items()
    }
    return Reference(values, telling)


def _places(tests: Iterable[str]) -> dict[str, tuple[str, int]]:
    """(function of the file as it was, number among its parameters) of each altered test: parameters alter its id."""
    seen: Counter[str] = Counter()
    found = {}
    for test in tests:
        function = test.partition("[")[0]
        found[test] = (_ALTERED.sub("", function), seen[function])
        seen[function] += 1
    return found


def _others(values: Sequence[str | None], other: Sequence[str]) -> list[str | None]:
    return [None if i < len(other) and other[i] == value else value for i, value in enumerate(values)]


def _keep(task: Task, found: Reference) -> None:
    _references[task.digest] = found
    while len(_references) > _KEPT:
        _references.popitem(last=False)


async def _nothing(box: Sandbox) -> None:
    """Lay nothing over the workspace."""


async def _solution_values(
    task: Task, kinds: Sequence[Kind], *, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[Values, bool]:
    """``_values`` of the reference solution; none where the task has no solution."""
    solution = {f"{task.info.workdir}/{name}": data for name, data in task.solution_files().items()}

    async def lay(box: Sandbox) -> None:
        await box.put(solution)

    if not solution:
        return {}, True
    return await _trusted_values(task, kinds, lay, backend, layers, how)


async def _trusted_values(
    task: Task, kinds: Sequence[Kind], lay: Lay, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[Values, bool]:
    """``_values`` of the task's own files: a submission has no part in this box, whatever becomes of it."""
    try:
        return await _values(task, kinds, {}, lay, backend, layers, how)
    except BoxError as error:
        failure = in_trusted_box(error)
        if failure is not error:
            raise failure from error
        raise EndlessError(f"{task.path}: a run of its own files ends its box: {error}") from error


async def _values(
    task: Task,
    kinds: Sequence[Kind],
    changed: Mapping[str, bytes],
    lay: Lay,
    backend: Backend,
    layers: LayerStore,
    how: Altering,
) -> tuple[Values, bool]:
    """One run of the tests, altered in each of ``kinds``, in a fresh box, and whether it came to its end."""
    files = altered_tests(task, how, kinds)
    box = await backend.create(box_spec(task, layers))
    try:
        await lay(box)
        await lay_tests(task, box, changed)
        await box.put({f"{task.info.workdir}/{name}": data for name, data in files.items()})
        run = await how.run(task, box, files, altered_ids(task, kinds))
    finally:
        await box.close()
    return values_of(run), run.complete


def values_of(run: TestRun) -> Values:
    """What altered tests have noted, by test; one that compares nothing gives its status instead."""
    return {
        test: [_rounded(value) for value in result.seen] or [f"status {result.status}"]
        for test, result in run.results.items()
    }


async def _run_pytest(task: Task, box: Sandbox, files: Mapping[str, bytes], ids: Sequence[str]) -> TestRun:
    return await run_pytest(
        box, sorted(files), ids, path=import_path(task), workdir=task.info.workdir,
        timeout=task.info.timeout_sec, test_timeout=test_timeout(task), encoder=encoder(),
    )  # fmt: skip


PYTEST = Altering(alter, _run_pytest, only)


def _rounded(text: str) -> str:
    """Floats to nine digits: two right ways to compute one may differ in the last bit."""
    return _FLOAT.sub(lambda match: f"f{float(match[1]):.9g}", text)


@cache
def encoder() -> str:
    """Source of what turns values into text in a box."""
    return Path(__file__).with_name("cases_runner.py").read_text("utf-8")
