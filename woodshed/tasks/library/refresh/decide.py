"""Decide about a task from its ratings, by confidence interval and not by point estimate.

Decisions are recorded as marks in the history of the task, and later ratings can revoke them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from woodshed.record.history import History, Mark, Status, note_mark, now, read_history
from woodshed.record.task import Task
from woodshed.tasks.library.difficulty import Share, ever_solved, rated_policy
from woodshed.tasks.validate.check import Verdict

from .harder import origins

Finding = Literal["unrated", "too easy", "unsolved", "teaches", "undecided"]


@dataclass(frozen=True)
class Limits:
    """Thresholds. A task is too easy if the 95 % interval of the newest policy's pass rate is above ``too_easy``, and
    unsolved if no rollout of at least ``unsolved``, of all policies together, solved it."""

    too_easy: float = 0.6
    unsolved: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.too_easy < 1:
            raise ValueError(f"too_easy must lie between 0 and 1, got {self.too_easy}")
        if self.unsolved < 1:
            raise ValueError(f"unsolved must be at least 1 rollout, got {self.unsolved}")


def newest(history: History) -> tuple[str, Share]:
    """Return (newest policy with version, share of its rollouts that solved the task). A run's baselines count only
    where no other policy was rated. ValueError without ratings."""
    last = max(history.ratings, key=lambda r: (not r.baseline, r.date))
    same = [r for r in history.ratings if rated_policy(r) == rated_policy(last)]
    share = Share(sum(r.solved for r in same), sum(r.rollouts for r in same))
    return f"{last.policy} version {last.version}", share


def find(history: History, limits: Limits) -> tuple[Finding, str]:
    """Return (finding, the evidence as text). ``undecided``: more rollouts are needed."""
    if not history.ratings:
        return "unrated", ""
    who, share = newest(history)
    everybody = ever_solved(history)
    if share.interval[0] > limits.too_easy:
        return "too easy", f"{who} solved {share}"
    if not everybody.count:
        if everybody.of >= limits.unsolved:
            return "unsolved", f"nobody solved it: {everybody}"
        return "undecided", f"{who} solved {share}"
    if share.count == share.of:
        return "undecided", f"{who} solved {share}"
    return "teaches", f"{who} solved {share}"


SOUND = "; checked again: the solution passes, doing nothing does not"


def retire(task: Task, limits: Limits, made: Sequence[str]) -> None:
    """Retire a task that became too easy; ``made``: names of the tasks that replace it."""
    _mark(task, "retired", find(read_history(task), limits)[1], made)


def settle_unsolved(task: Task, limits: Limits, verdict: Verdict) -> Status:
    """Quarantine a task that nobody solved if it passes every gate; else mark it as broken."""
    why = find(read_history(task), limits)[1]
    if verdict.passed:
        _mark(task, "quarantined", why + SOUND)
        return "quarantined"
    failures = "; ".join(f"{gate}: {what}" for gate, what in verdict.failures.items())
    _mark(task, "broken", f"{why}; {failures}")
    return "broken"


def release(task: Task) -> bool:
    """Take a quarantined task back into use if a rollout has solved it since; return whether that is so."""
    history = read_history(task)
    share = ever_solved(history)
    if history.status != "quarantined" or not share.count:
        return False
    _mark(task, "in use", f"solved since: {share}")
    return True


def left_open(tasks: Sequence[Task], made: Sequence[Task]) -> dict[str, list[Task]]:
    """Name of a task in use -> tasks among ``made`` that are harder forms of it: an earlier start was stopped before it
    retired the task, maybe before the last gates."""
    named = {task.name: task for task in tasks}
    found: dict[str, list[Task]] = {}
    for task in made:
        for name in origins(task):
            if name in named and read_history(named[name]).status == "in use":
                found.setdefault(name, []).append(task)
    return found


def _mark(task: Task, status: Status, why: str, made: Sequence[str] = ()) -> None:
    note_mark(task, Mark(status, why, now(), tuple(made)))
