"""Marks: what is decided about a task is noted in its history, and can be taken back by what policies do later."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.history import Mark, Status, note_mark, now, read_history
from woodshed.record.task import Task
from woodshed.tasks.library.difficulty import ever_solved
from woodshed.tasks.validate.check import Verdict

from .decide import Limits, find
from .harder import origins

SOUND = "; checked again: the solution passes, doing nothing does not"


def retire(task: Task, limits: Limits, made: Sequence[str]) -> None:
    """Take a task out of use that became too easy; ``made``: names of what took its place."""
    _mark(task, "retired", find(read_history(task), limits)[1], made)


def settle_unsolved(task: Task, limits: Limits, verdict: Verdict) -> Status:
    """Quarantine a task that nobody solved and that passes every gate; else it is broken."""
    why = find(read_history(task), limits)[1]
    if verdict.passed:
        _mark(task, "quarantined", why + SOUND)
        return "quarantined"
    failures = "; ".join(f"{gate}: {what}" for gate, what in verdict.failures.items())
    _mark(task, "broken", f"{why}; {failures}")
    return "broken"


def release(task: Task) -> bool:
    """Take a quarantined task back into use if somebody has solved it since."""
    history = read_history(task)
    share = ever_solved(history)
    if history.status != "quarantined" or not share.count:
        return False
    _mark(task, "in use", f"solved since: {share}")
    return True


def left_open(tasks: Sequence[Task], made: Sequence[Task]) -> dict[str, list[Task]]:
    """Tasks in use -> what is ``made`` of them already: an earlier start was stopped before it retired them, maybe
    before the last gates."""
    named = {task.name: task for task in tasks}
    found: dict[str, list[Task]] = {}
    for task in made:
        for name in origins(task):
            if name in named and read_history(named[name]).status == "in use":
                found.setdefault(name, []).append(task)
    return found


def _mark(task: Task, status: Status, why: str, made: Sequence[str] = ()) -> None:
    note_mark(task, Mark(status, why, now(), tuple(made)))
