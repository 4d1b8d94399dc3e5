"""Held-out values for graders that run tests: what the submission answers to inputs that it has not seen.

Tests and submission share a process there, and an agent has read the tests. So passing them is not enough: the failing
tests run once more with altered constants (``pytest_alter.py``, ``node/alter.py``), and the values that they would
have compared must be those of the reference solution. The expected values never enter a box that holds the
submission, and the comparison is on the host. Whoever takes over the test process, equals everything, reads the
caller's expectations or knows the visible answers by heart still has to compute the right ones.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, TypeVar

from woodshed.record.fault import FaultSource
from woodshed.record.task import Task
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, Sandbox, SandboxError
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import box_spec

from .altered import Altering, altered_ids, altered_tests, known_of, split
from .other_constants import KINDS, SAME, Kind, other
from .pytest_alter import alter
from .pytest_given import literals, only, placeholders
from .pytest_grader import import_path, lay_tests, run_pytest, test_timeout
from .results import TestRun
from .telling import Reference, Values, agreed, objection, problem_of, reference_of, total, values_of

Lay = Callable[[Sandbox], Awaitable[None]]
T = TypeVar("T")

_BOTH: tuple[Kind, ...] = (*KINDS, SAME)
_KEPT = 256
_references: OrderedDict[tuple[str, str], Reference] = OrderedDict()
"""(digest of a task, what its other inputs are drawn from) -> what the solution answers."""
_drawn: OrderedDict[tuple[str, str], str] = OrderedDict()
"""(digest of a task, key of a run) -> what its other inputs are drawn from in that run; see ``drawn``."""
_endless: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
"""(digest of a task, key of a run) -> when none of its draws ended, and what was said."""
_ENDLESS_SECONDS = 600.0
"""For so long nobody waits for that again: it takes minutes. Then the machine may be less busy."""


class EndlessError(SandboxError):
    """The tests with other inputs do not come to their end on the solution itself: nobody is judged by them."""

    source: ClassVar[FaultSource] = "task"


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
    objects) cannot be checked so, and is believed. SandboxError where the sandbox fails, EndlessError where the
    solution's own run does not end.
    """
    if share == 0:
        return ""
    how, known = await drawn(task, backend, layers, how or PYTEST)
    if not total(known.values):
        return ""
    seen, _ = await _values(task, KINDS, changed, lay, backend, layers, how)
    if not objection(known, seen, share, keyed=bool(how.key)):
        return ""
    # What the clock decides can be the same twice and then not: the solution answers once more, after the submission.
    later, whole = await _solution_values(task, KINDS, backend=backend, layers=layers, how=how)
    if whole and all(len(later.get(test, ())) == len(values) for test, values in known.values.items()):
        again = Reference(agreed(known.values, later), agreed(known.telling, later))
        if total(known.telling) and not total(again.telling):
            raise EndlessError(f"{task.path}: every value that tells a fix from a trick is another one each time")
        known = again
        _keep(_references, (task.digest, how.key), known)
    return objection(known, seen, share, keyed=bool(how.key))


async def drawn(task: Task, backend: Backend, layers: LayerStore, how: Altering) -> tuple[Altering, Reference]:
    """The other inputs on which a run with the key of ``how`` judges submissions to a task, and the ``reference``.

    The build has proved a task on the public inputs alone. On those of a key its solution may not end, or nothing may
    tell a fix from a guess. Then inputs are drawn once more, and last come the public ones: the first that do are
    taken, the same for every submission. Where no values tell at all, as in tasks of others, the first that end are.
    Raises EndlessError where none end.
    """
    place = (task.digest, how.key)
    if (key := _drawn.get(place)) is not None:
        return replace(how, key=key), await reference(task, backend, layers, replace(how, key=key))
    since, said = _endless.get(place, (-math.inf, ""))
    if time.monotonic() - since < _ENDLESS_SECONDS:
        raise EndlessError(said)
    endless: EndlessError | None = None
    ended: list[tuple[Altering, Reference]] = []
    for key in _draws(how.key):
        one = replace(how, key=key)
        try:
            ended.append((one, await reference(task, backend, layers, one)))
        except EndlessError as error:
            endless = endless or error
            continue
        if not problem_of(ended[-1][1]):
            break
    else:
        ended = ended[:1]
    if not ended:
        assert endless is not None
        _keep(_endless, place, (time.monotonic(), str(endless)))
        raise endless
    _keep(_drawn, place, ended[-1][0].key)
    return ended[-1]


def _draws(key: str) -> tuple[str, ...]:
    """What other inputs are drawn from, in turn."""
    return (key, f"{key}:again", "") if key else ("",)


async def reference(task: Task, backend: Backend, layers: LayerStore, how: Altering) -> Reference:
    """What a submission is compared with: what the solution answers, asked twice, and what of that may be known (see
    ``Known``). Kept by the task's digest.

    Raises EndlessError: nobody is believed because a busy machine cut the solution's run short.
    """
    if not altered_tests(task, how):
        return Reference({}, {})
    place = (task.digest, how.key)
    if (found := _references.get(place)) is not None:
        _references.move_to_end(place)
        return found
    solution = partial(_solution_values, task, backend=backend, layers=layers, how=how)
    first, second = [await _whole(partial(solution, kinds), task) for kinds in (_BOTH, KINDS)]

    async def lay(box: Sandbox) -> None:
        await box.put({f"{task.info.workdir}/{name}": data for name, data in how.given(task).items()})

    given, _ = await _twice(partial(_trusted_values, task, _BOTH, lay, backend, layers, how))
    _, others = split(first)
    made = reference_of(others, second, known_of(task, how, first, given))
    _keep(_references, place, made)
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


def _keep(store: OrderedDict[tuple[str, str], T], place: tuple[str, str], found: T) -> None:
    store[place] = found
    while len(store) > _KEPT:
        store.popitem(last=False)


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
        box,
        sorted(files),
        ids,
        path=import_path(task),
        workdir=task.info.workdir,
        timeout=task.info.timeout_sec,
        test_timeout=test_timeout(task),
        encoder=encoder(),
    )


PYTEST = Altering(alter, _run_pytest, literals, other, only=only, given=placeholders)


@cache
def encoder() -> str:
    """Source of what turns values into text in a box."""
    return Path(__file__).with_name("value_runner.py").read_text("utf-8")
