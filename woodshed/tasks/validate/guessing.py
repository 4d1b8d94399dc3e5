"""What tells a fix from a guess: values on inputs that nobody has seen, which no cheap answer gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from woodshed.attacks.exploits import by_heart as python_by_heart
from woodshed.attacks.exploits import node_by_heart
from woodshed.attacks.exploits.base import NODE, Target
from woodshed.attacks.exploits.by_heart_code import ELSEWHERE
from woodshed.attacks.exploits.values import constant
from woodshed.grading.altered import Altering
from woodshed.grading.heldout import answers
from woodshed.grading.telling import Reference, Values, objection, problem_of, told_in, without
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

ENDLESS = "the solution's tests do not end on other inputs"
CHEAP = "a constant answer, or an argument, is right on most other inputs"
BY_HEART = "the visible answers by heart are right on most other inputs"
UNTOLD = "for one of the changed functions no value tells a fix from a guess"
ANSWERS = ("True", "False", "None", "args[-1] if args else None")
"""What a function can answer without computing anything, in Python."""

_SHARE = 0.75
"""Of the values that tell, a cheap answer must not give as many: with a few answers by heart it would give more."""


def untold(found: Reference, functions: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Those of the ``functions`` (name -> tests that run it) that are run by no test with a value that tells: a table
    would do for them."""
    told = told_in(found)
    return tuple(name for name, tests in functions.items() if not any(test.partition("[")[0] in told for test in tests))


def too_cheap(found: Reference, answered: Sequence[Values], by_heart: Sequence[Values]) -> str:
    """Why a task on which cheap answers have ``answered`` so on other inputs, and answers ``by_heart`` so, is not
    kept; empty where it is. None may give much of what the solution gives, nor all of them together everything."""
    if any(not objection(found, answer, _SHARE) for answer in answered):
        return CHEAP
    if any(not objection(found, answer, _SHARE) for answer in by_heart):
        return BY_HEART
    return ""


def left_of(found: Reference, answered: Iterable[Values]) -> Reference:
    """``found``, of which nothing tells that a cheap answer has given."""
    for answer in answered:
        found = without(found, answer)
    return found


def stubs(task: Task) -> list[dict[str, bytes]]:
    """Submissions in Python that compute nothing."""
    try:
        target = Target.of(task)
    except TaskError:
        return []
    return [] if task.info.grader == NODE else [constant(target, answer) for answer in ANSWERS]


def by_heart(task: Task) -> tuple[dict[str, bytes], list[dict[str, bytes]]]:
    """Files that note the solution's answers in the box, and submissions that know these and nothing else."""
    way = node_by_heart if task.info.grader == NODE else python_by_heart
    ways = node_by_heart.WAYS if task.info.grader == NODE else ELSEWHERE
    if not (teacher := way.teach(task)):
        return {}, []
    return teacher, [made for name in ways if (made := way.pupil(task, name))]


async def cheaply(
    task: Task, found: Reference, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[str, Reference]:
    """Why answers that compute nothing are too good for a task (empty where they are not), each tried in a box of its
    own, and what of ``found`` tells anything beside them."""
    teacher, pupils = by_heart(task)
    cheap = [await answers(task, stub, backend, layers, how) for stub in stubs(task)]
    known = [await answers(task, pupil, backend, layers, how, teacher) for pupil in pupils]
    left = left_of(found, (*cheap, *known))
    return too_cheap(found, cheap, known) or problem_of(left), left
