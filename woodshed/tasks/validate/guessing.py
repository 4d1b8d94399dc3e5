"""Tell fixes from guesses: values on unseen inputs that no answer without computation gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from woodshed.attacks.exploits import by_heart as python_by_heart
from woodshed.attacks.exploits import node_by_heart
from woodshed.attacks.exploits.base import NODE, Target
from woodshed.attacks.exploits.by_heart_code import ELSEWHERE
from woodshed.attacks.exploits.node_values import constant as node_constant
from woodshed.attacks.exploits.values import constant
from woodshed.grading.altered import Altering
from woodshed.grading.heldout import answers
from woodshed.grading.own_values import missed, own_values
from woodshed.grading.telling import (
    Reference,
    Values,
    kinds_apart,
    objection,
    one_nearly_everywhere,
    problem_of,
    refused,
    told_in,
    without,
)
from woodshed.grading.telling import by_heart as by_heart_of
from woodshed.record.task import Task, TaskError
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

ENDLESS = "the solution's tests do not end on other inputs"
CHEAP = "a constant answer, or an argument, is right on most other inputs"
BY_HEART = "the visible answers by heart are right on most other inputs"
GUESSABLE = "for one of the changed functions no value tells a fix from a guess"
ANSWERS = ("True", "False", "None", "args[-1] if args else None")
"""Python expressions that a function can return without computing anything."""
NODE_ANSWERS = ("true", "false", "null", "undefined", "args[args.length - 1]")
"""The same in JavaScript."""

_NEARLY = 0.8
"""Share of right values below which no submission is rewarded, whatever inputs are drawn; grading asks for more."""
_SHARE = 0.75
"""An answer without computation must give less than this share of the values that tell a fix from a guess: with a few
more answers by heart it would give all of them."""


def guessable(found: Reference, functions: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the ``functions`` (name -> tests that run it) that a table of answers, perhaps with a constant for all
    other inputs, could replace: their tests have no value that tells a fix from a guess, or nearly always the same."""
    told, replaceable = told_in(found), []
    for name, tests in functions.items():
        values = [value for test in {t.partition("[")[0] for t in tests} for value in told.get(test, ())]
        if not values or one_nearly_everywhere(values):
            replaceable.append(name)
    return tuple(replaceable)


def alone(task: Task, functions: Collection[str]) -> dict[str, dict[str, bytes]]:
    """Map each of several ``functions`` (``module:name``) to a submission that has all others right, and of this one
    only the visible answers by heart (files that a teacher of ``by_heart`` has run with)."""
    if len(functions) < 2:
        return {}
    way = node_by_heart if task.info.grader == NODE else python_by_heart
    made = {place: way.all_but(task, *place.rsplit(":", 1)) for place in functions}
    return {place: files for place, files in made.items() if files}


def few_values(found: Reference, left: Reference, answered: Mapping[str, Values]) -> dict[str, str]:
    """Return ``TaskInfo.own_values`` of the functions that could stay unfixed: the ``answered`` submission of ``alone``
    comes so close to ``found``, the solution's answers, that grading may reward it without them. ``left``: ``found``
    without the values that guesses give. The text is empty if a function has too few.

    A submission that misses no value of ``found`` is left out: exploits cannot replace every function (a coroutine, one
    that a module of Node does not export), and what is right on all other inputs cannot be told from the solution.
    """
    return {
        name: own_values(left, seen)
        for name, seen in answered.items()
        if missed(found, seen) and not (objection(found, seen, _NEARLY) or by_heart_of(found, seen, _NEARLY))
    }


def replaceable(left: Reference, functions: Mapping[str, Iterable[str]], own: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ``functions`` that are ``guessable``, or have too few values of their own (``few_values``)."""
    found = {*guessable(left, functions), *(name for name, text in own.items() if not text)}
    return tuple(name for name in functions if name in found)


def too_cheap(found: Reference, answered: Sequence[Values], by_heart: Sequence[Values]) -> str:
    """Return the reason to reject the task if guesses come too close to ``found``, the solution's answers; else ''.

    ``answered``: values of constant answers on other inputs; ``by_heart``: values of the visible answers by heart.
    """
    if any(not objection(found, answer, _SHARE) for answer in answered):
        return CHEAP
    if any(not objection(found, answer, _SHARE) for answer in by_heart):
        return BY_HEART
    return ""


def left_of(found: Reference, cheap: Iterable[Values], by_heart: Iterable[Values]) -> Reference:
    """``found`` without the values that a constant answer or the visible answers by heart give too."""
    left = found
    for answer in by_heart:
        left = without(left, answer)
    # A predicate has no value that no constant gives; if it has enough of both, grading refuses each constant, unless
    # tests ask for both what it says and the opposite.
    apart = kinds_apart(left)
    for answer in cheap:
        left = without(left, answer, apart & refused(left, answer))
    return left


def stubs(task: Task) -> list[dict[str, bytes]]:
    """Submissions that compute nothing (path -> content)."""
    try:
        target = Target.of(task)
    except TaskError:
        return []
    if task.info.grader == NODE:
        return [node_constant(target, answer) for answer in NODE_ANSWERS]
    return [constant(target, answer) for answer in ANSWERS]


def by_heart(task: Task) -> tuple[dict[str, bytes], list[dict[str, bytes]]]:
    """Return (files that record the solution's answers in the box, submissions that know only these answers)."""
    way = node_by_heart if task.info.grader == NODE else python_by_heart
    ways = node_by_heart.WAYS if task.info.grader == NODE else ELSEWHERE
    if not (teacher := way.teach(task)):
        return {}, []
    return teacher, [made for name in ways if (made := way.pupil(task, name))]


async def cheaply(
    task: Task, found: Reference, backend: Backend, layers: LayerStore, how: Altering
) -> tuple[str, Reference]:
    """Run each guess in a box of its own; return (reason to reject the task or '', ``found`` without the values that
    guesses give)."""
    teacher, pupils = by_heart(task)
    cheap = [await answers(task=task, submission=stub, backend=backend, layers=layers, how=how) for stub in stubs(task)]
    known = [
        await answers(task=task, submission=pupil, backend=backend, layers=layers, how=how, taught=teacher)
        for pupil in pupils
    ]
    left = left_of(found, cheap, known)
    return too_cheap(found, cheap, known) or problem_of(left), left


async def each_alone(
    task: Task,
    found: Reference,
    left: Reference,
    functions: Collection[str],
    backend: Backend,
    layers: LayerStore,
    how: Altering,
) -> dict[str, str]:
    """Run the submissions of ``alone``, each in a box of its own; return their ``few_values``."""
    teacher, _ = by_heart(task)
    answered = {
        name: await answers(task=task, submission=files, backend=backend, layers=layers, how=how, taught=teacher)
        for name, files in alone(task, functions).items()
    }
    return few_values(found, left, answered)
