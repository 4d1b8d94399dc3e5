"""Held-out values for graders that run tests: what the submission answers to inputs that it has not seen.

Tests and submission share a process there, and an agent has read the tests. So passing them is not enough: the failing
tests run once more with altered constants (``pytest_alter.py``, ``node/alter.py``), and the values that they would
have compared must be those of the reference solution. The expected values never enter a box that holds the
submission, and the comparison is on the host. Whoever takes over the test process, equals everything, reads the
caller's expectations or knows the visible answers by heart still has to compute the right ones.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

from woodshed.record.task import Task
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, Sandbox, SandboxError
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import box_spec

from .other_constants import KINDS, SAME, Kind, other
from .pytest_alter import alter
from .pytest_given import placeholders
from .pytest_grader import TESTS_PREFIX, import_path, lay_tests, run_pytest, test_timeout
from .pytest_literals import literals
from .pytest_only import only
from .results import TestRun
from .telling import Known, Reference, Values, agreed, kind_of, objection, reference_of, total, values_of
from .value_runner import encode

Lay = Callable[[Sandbox], Awaitable[None]]

KEY = "WOODSHED_HELD_OUT_KEY"
"""Environment variable: what other inputs are drawn from besides the task. A run sets a text that its policy cannot
know; the same text gives the same inputs again."""
_BOTH: tuple[Kind, ...] = (*KINDS, SAME)
_KEPT = 256
_references: OrderedDict[tuple[str, str], Reference] = OrderedDict()


class EndlessError(SandboxError):
    """The tests with other inputs do not come to their end on the solution itself."""


@dataclass(frozen=True)
class Altering:
    """How tests of one kind are altered, and how altered files (relative to the workdir) run in a box.

    ``alter`` takes the source, the kind and a seed. ``run`` is given the ids of the altered tests, without parameters,
    and fills in ``TestResult.seen``. ``only``: what of a file is altered, for the tests (by the names of their classes
    and functions) that are asked for. ``literals``: function of a source -> what is written out there (``""``: in all
    of it); ``other``: what stands for such a value in a kind; ``text``: how a value is noted. ``given``: the files
    that a task starts with, so that its tests can be loaded.
    """

    alter: Callable[[str, Kind, str], str | None]
    run: Callable[[Task, Sandbox, Mapping[str, bytes], Sequence[str]], Awaitable[TestRun]]
    literals: Callable[[str], Mapping[str, Sequence[Any]]]
    other: Callable[[Any, Kind, str], Any]
    text: Callable[[Any], str] = encode
    only: Callable[[str, frozenset[str]], str] = lambda source, tests: source
    given: Callable[[Task], dict[str, bytes]] = lambda task: {}


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
    if not total(known.values):
        return ""
    seen, _ = await _values(task, KINDS, changed, lay, backend, layers, how)
    if not objection(known, seen, share):
        return ""
    # What the clock decides can be the same twice and then not: the solution answers once more, after the submission.
    later, whole = await _solution_values(task, KINDS, backend=backend, layers=layers, how=how)
    if whole and all(len(later.get(test, ())) == len(values) for test, values in known.values.items()):
        again = Reference(agreed(known.values, later), agreed(known.telling, later))
        if total(known.telling) and not total(again.telling):
            raise EndlessError(f"{task.path}: every value that tells a fix from a trick is another one each time")
        known = again
        _keep(task, known)
    return objection(known, seen, share)


def altered_tests(task: Task, how: Altering | None = None, kinds: Sequence[Kind] = KINDS) -> dict[str, bytes]:
    """Altered copies of the files with failing tests, beside them and under names of their own."""
    how = how or PYTEST
    files: dict[str, bytes] = {}
    for name, source in _failing_files(task, how).items():
        for kind in kinds:
            made = how.alter(source, kind, _seed(task, name))
            if made is not None and (kind == SAME or made.encode() not in files.values()):
                files[altered_name(name, kind)] = made.encode()
    return files


def _failing_files(task: Task, how: Altering) -> dict[str, str]:
    """What of the files with failing tests is altered."""
    tests, wanted = task.test_files(), _names(task.info.fail_to_pass)
    names = sorted({test.partition("::")[0] for test in task.info.fail_to_pass})
    return {n: how.only(tests.get(TESTS_PREFIX + n, b"").decode("utf-8", "replace"), wanted) for n in names}


def _seed(task: Task, name: str) -> str:
    """What the other inputs of a file are drawn from."""
    return hashlib.sha256(f"{os.environ.get(KEY, '')}:{task.name}:{name}".encode()).hexdigest()


def known_of(task: Task, how: Altering, visible: Values, given: Values) -> Known:
    """What may be known of the altered tests; ``visible`` and ``given`` answer other and visible inputs, the first
    from the solution."""
    inputs: dict[str, frozenset[str]] = {}
    changes: dict[str, list[tuple[object, object]]] = {}
    altered = altered_tests(task, how)
    for name, source in _failing_files(task, how).items():
        for kind in KINDS:
            place = altered_name(name, kind)
            for function, found in how.literals(altered.get(place, b"").decode()).items():
                key = f"{place}::{function}" if function else place
                inputs[key] = frozenset(_texts(found, how.text))
            for function, found in how.literals(source).items():
                key = f"{place}::{function}" if function else place
                pairs = ((old, how.other(old, kind, _seed(task, name))) for old in _scalars(found))
                changes[key] = [(_as_text(old), _as_text(new)) for old, new in pairs if new != old]
    shown, same = _split(visible), _split(given)
    return Known(same[1], shown[0], same[0], inputs, changes)


def _scalars(found: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(value for value in found if type(value) in (str, bytes, int, float)))


def _as_text(value: Any) -> Any:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _texts(found: Iterable[Any], text: Callable[[Any], str]) -> Iterable[str]:
    for value in found:
        try:
            yield text(value)
        except (ValueError, TypeError, RecursionError):
            continue


def _split(values: Values) -> tuple[Values, Values]:
    """(answers to the visible inputs, to others)."""
    visible = {test: of_test for test, of_test in values.items() if kind_of(test) == SAME}
    return visible, {test: of_test for test, of_test in values.items() if test not in visible}


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
    """What a submission is compared with: what the solution answers, asked twice, and what of that may be known (see
    ``Known``). Kept by the task's digest.

    Raises EndlessError: nobody is believed because a busy machine cut the solution's run short.
    """
    if not altered_tests(task, how):
        return Reference({}, {})
    key = (task.digest, os.environ.get(KEY, ""))
    if (found := _references.get(key)) is not None:
        _references.move_to_end(key)
        return found
    solution = partial(_solution_values, task, backend=backend, layers=layers, how=how)
    first, second = [await _whole(partial(solution, kinds), task) for kinds in (_BOTH, KINDS)]

    async def lay(box: Sandbox) -> None:
        await box.put({f"{task.info.workdir}/{name}": data for name, data in how.given(task).items()})

    given, _ = await _twice(partial(_trusted_values, task, _BOTH, lay, backend, layers, how))
    _, others = _split(first)
    made = reference_of(others, second, known_of(task, how, first, given))
    _keep(task, made)
    return made


async def answers(
    task: Task,
    submission: Mapping[str, bytes],
    backend: Backend,
    layers: LayerStore,
    how: Altering,
    taught: Mapping[str, bytes] | None = None,
) -> Values:
    """What files laid over the workspace answer to other inputs. ``taught``: files that answer the visible inputs
    before, in the same box, in which they may leave what they learn."""
    box = await create_box(backend, box_spec(task, layers), task.info.start)
    try:
        await lay_tests(task, box, {})
        if taught is not None:
            await _run(task, box, (SAME,), taught, how)
        return values_of(await _run(task, box, KINDS, submission, how))
    finally:
        await box.close()


async def _run(
    task: Task, box: Sandbox, kinds: Sequence[Kind], submission: Mapping[str, bytes], how: Altering
) -> TestRun:
    files = altered_tests(task, how, kinds)
    await box.put({f"{task.info.workdir}/{name}": data for name, data in {**submission, **files}.items()})
    return await how.run(task, box, files, altered_ids(task, kinds))


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


def _keep(task: Task, found: Reference) -> None:
    _references[task.digest, os.environ.get(KEY, "")] = found
    while len(_references) > _KEPT:
        _references.popitem(last=False)


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
    box = await create_box(backend, box_spec(task, layers), task.info.start)
    try:
        await lay(box)
        await lay_tests(task, box, changed)
        run = await _run(task, box, kinds, {}, how)
    finally:
        await box.close()
    return values_of(run), run.complete


async def _run_pytest(task: Task, box: Sandbox, files: Mapping[str, bytes], ids: Sequence[str]) -> TestRun:
    return await run_pytest(
        box, sorted(files), ids, path=import_path(task), workdir=task.info.workdir,
        timeout=task.info.timeout_sec, test_timeout=test_timeout(task), encoder=encoder(),
    )  # fmt: skip


PYTEST = Altering(alter, _run_pytest, literals, other, only=only, given=placeholders)


@cache
def encoder() -> str:
    """Source of what turns values into text in a box."""
    return Path(__file__).with_name("value_runner.py").read_text("utf-8")
