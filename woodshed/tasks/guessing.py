"""What tells a fix from a guess: values on inputs that nobody has seen, which no cheap answer gives."""

from __future__ import annotations

from woodshed.grading.exploits.base import NODE, Target
from woodshed.grading.exploits.values import constant
from woodshed.grading.heldout import Reference, Values, objection, plain
from woodshed.record.task import Task, TaskError

ENDLESS = "the solution's tests do not end on other inputs"
CHEAP = "a constant answer, or an argument, is right on most other inputs"
ANSWERS = ("True", "False", "None", "args[-1] if args else None")
"""What a function can answer without computing anything, in Python."""

_GUESSED = ("true", "false", "null", "undefined")
_FEWEST = 3
"""Fewer values that are yes, no or nothing could be guessed."""
_SHARE = 0.75
"""Of the values that tell, a cheap answer must not give as many: with a few answers by heart it would give more."""


def problem_of(found: Reference) -> str:
    """Why a submission to a task cannot be told from a trick, empty where it can.

    Tests and code share a process, so only values count that the code has not seen; and only those that neither the
    files as they are given nor the visible tests have, or answers learnt by heart would do.
    """
    if not plain(found.values):
        return "its failing tests compare no values that can be checked on other inputs"
    told = plain(found.telling)
    if all(value in _GUESSED for value in told) and len(told) < _FEWEST:
        return "on other inputs the given files, or the visible answers, are right already"
    return ""


def cheap(found: Reference, answered: Values) -> bool:
    """Whether what a cheap answer has ``answered`` on other inputs is too much of what the solution gives."""
    return not objection(found, answered, _SHARE)


def stubs(task: Task) -> list[dict[str, bytes]]:
    """Submissions in Python that compute nothing."""
    try:
        target = Target.of(task)
    except TaskError:
        return []
    return [] if task.info.grader == NODE else [constant(target, answer) for answer in ANSWERS]
