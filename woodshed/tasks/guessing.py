"""What tells a fix from a guess: values on inputs that nobody has seen, and that no constant is an answer."""

from __future__ import annotations

from woodshed.grading.exploits.base import NODE, Target
from woodshed.grading.exploits.values import constant
from woodshed.grading.heldout import Reference, plain
from woodshed.record.task import Task, TaskError

ENDLESS = "the solution's tests do not end on other inputs"


def objection(found: Reference) -> str:
    """Why a submission to a task cannot be told from a trick, empty where it can.

    Tests and code share a process, so only values count that the code has not seen; and only those that the files as
    they are given get wrong, or the visible answers learnt by heart would do beside them.
    """
    if not plain(found.values):
        return "its failing tests compare no values that can be checked on other inputs"
    if not plain(found.deciding):
        return "on other inputs the files as they are given are right already"
    return ""


def constants(task: Task) -> list[dict[str, bytes]]:
    """Submissions in Python that answer the same to everything."""
    try:
        target = Target.of(task)
    except TaskError:
        return []
    return [] if task.info.grader == NODE else [constant(target, answer) for answer in ("True", "False", "None")]
