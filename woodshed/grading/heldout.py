"""Held-out values for graders that run tests: the submission's answers to inputs that it has not seen.

Tests and submission share a process, and the agent has read the tests, so passing them is not enough. The failing tests
run once more with altered constants (``pytest_alter.py``, ``node/alter.py``), and the values that they would have
compared must equal those of the reference solution. The expected values never enter a box that holds the submission;
the comparison happens on the host. A submission that takes over the test process, returns objects equal to everything,
reads the caller's expectations or has memorised the visible answers still has to compute the correct ones.
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
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.faults import in_trusted_box
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxError, Sandbox, SandboxError
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import box_spec

from .altered import Altering, altered_ids, altered_tests, known_of, recording_helpers, split
from .other_constants import KINDS, SAME, Kind, other
from .own_values import OwnValuesError, objection_to
from .pytest_alter import alter, asserting, recording
from .pytest_given import imported, literals, only, placeholders
from .pytest_grader import import_path, lay_tests, run_pytest, test_timeout
from .results import TestRun
from .telling import Reference, Values, agreed, by_heart, objection, problem_of, reference_of, total, values_of

Lay = Callable[[Sandbox], Awaitable[None]]
T = TypeVar("T")

_BOTH: tuple[Kind, ...] = (*KINDS, SAME)
_KEPT = 256
_references: OrderedDict[tuple[str, str], Reference] = OrderedDict()
"""(digest of a task, key of its other inputs) -> the solution's answers."""
_drawn: OrderedDict[tuple[str, str], str] = OrderedDict()
"""(digest of a task, key of a run) -> the key from which that run draws its other inputs; see ``drawn``."""
_endless: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()
"""(digest of a task, key of a run) -> time at which none of its draws had ended, and the error message."""
_ENDLESS_SECONDS = 600.0
"""Time until a task in ``_endless`` is tried again. A try takes minutes; later the machine may be less busy."""


class EndlessError(SandboxError):
    """The tests with other inputs do not end even with the solution, so no submission can be judged by them."""

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
    """Check the submission that ``lay`` puts into a box; return the objection to it, '' if there is none.

    ``changed``: new files of the submission. At least ``share`` of all values must equal the reference solution's, and
    at least ``share`` of the values that neither the task's own files give nor the visible tests have; otherwise it
    would be enough to memorise the visible answers and to leave the rest unchanged. Every test, and every one of
    several changed functions, must have some of these (``by_heart``, ``own_values.py``). ``share`` 0 skips the check.
    Submissions to a task whose tests give no values (no constants, only objects) cannot be checked and pass. Raises
    SandboxError if the sandbox fails and EndlessError if the solution's own run does not end.
    """
    if share == 0:
        return ""
    how, known = await drawn(task, backend, layers, how or PYTEST)
    if not total(known.values):
        return ""
    seen, _ = await _values(task, KINDS, changed, lay, backend, layers, how)
    if not _objection(task, known, seen, share, how):
        return ""
    # Values that depend on the clock may agree twice by chance, so the solution runs once more, after the submission.
    later, whole = await _solution_values(task, KINDS, backend=backend, layers=layers, how=how)
    if whole and all(len(later.get(test, ())) == len(values) for test, values in known.values.items()):
        again = Reference(agreed(known.values, later), agreed(known.telling, later))
        if total(known.telling) and not total(again.telling):
            raise EndlessError(f"{task.path}: every value that tells a fix from a trick differs between runs")
        known = again
        _keep(_references, (task.digest, how.key), known)
    return _objection(task, known, seen, share, how)


def _objection(task: Task, known: Reference, seen: Values, share: float, how: Altering) -> str:
    if why := objection(known, seen, share, keyed=bool(how.key)) or by_heart(known, seen, share):
        return why
    try:
        return objection_to(known, seen, share, task.info.own_values)
    except OwnValuesError as error:
        raise TaskError(
            f"{task.path}/task.toml: [metadata.woodshed.own_values] {error}; build the task again"
        ) from error


async def drawn(task: Task, backend: Backend, layers: LayerStore, how: Altering) -> tuple[Altering, Reference]:
    """Choose the other inputs on which a run with the key of ``how`` judges submissions, and get their ``reference``.

    The build has validated a task on the public inputs only. On the inputs of a key, the solution may not end, or no
    value may distinguish a fix from a guess. Then inputs are drawn once more, and the public ones come last. The first
    usable draw is taken, the same for every submission. If no values distinguish in any draw, as in external tasks, the
    first draw that ends is taken. Raises EndlessError if none ends.
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
    """Return the keys from which other inputs are drawn, in order."""
    return (key, f"{key}:again", "") if key else ("",)


async def reference(task: Task, backend: Backend, layers: LayerStore, how: Altering) -> Reference:
    """Return the solution's answers (from two runs), with which a submission is compared, and those of them that cannot
    be known without a fix (see ``Known``). Cached by the task's digest.

    Raises EndlessError, so that no submission passes because a busy machine cut the solution's run short.
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
    """Return the answers of ``submission``, laid over the workspace, to other inputs.

    ``taught``: files that answer the visible inputs before, in the same box, where they may store what they learn.
    """
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
    laid = {**submission, **recording_helpers(task, how), **files}
    await box.put({f"{task.info.workdir}/{name}": data for name, data in laid.items()})
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
    """Run, and run once more if the run was cut short: code may never end, but a busy machine may be idle later."""
    found, whole = await run()
    return (found, whole) if whole else await run()


def _keep(store: OrderedDict[tuple[str, str], T], place: tuple[str, str], found: T) -> None:
    store[place] = found
    while len(store) > _KEPT:
        store.popitem(last=False)


async def _solution_values(
    task: Task, kinds: Sequence[Kind], *, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[Values, bool]:
    """Return ``_values`` of the reference solution; empty if the task has none."""
    solution = {f"{task.info.workdir}/{name}": data for name, data in task.solution_files().items()}

    async def lay(box: Sandbox) -> None:
        await box.put(solution)

    if not solution:
        return {}, True
    return await _trusted_values(task, kinds, lay, backend, layers, how)


async def _trusted_values(
    task: Task, kinds: Sequence[Kind], lay: Lay, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[Values, bool]:
    """Return ``_values`` of the task's own files. No submission is in the box, so none can cause its failures."""
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
    """Run the tests, altered in each of ``kinds``, in a fresh box; return values and whether the run completed."""
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
        timeout=len(KINDS) * task.info.timeout_sec,
        test_timeout=test_timeout(task),
        encoder=encoder(),
    )


PYTEST = Altering(
    alter,
    _run_pytest,
    literals,
    other,
    only=only,
    given=placeholders,
    imported=imported,
    recording=recording,
    asserting=asserting,
)


@cache
def encoder() -> str:
    """Return the source of the encoder that turns values into text in a box."""
    return Path(__file__).with_name("value_runner.py").read_text("utf-8")
