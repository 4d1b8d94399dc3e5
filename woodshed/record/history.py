"""``TASK/history.jsonl``: results of policies on a task, and whether the task is still in use. Append-only.

The file lies beside ``task.toml`` and is copied with the task, but is not part of it: ``Task.digest`` leaves it out.
Lines about an earlier version of the task (with another digest) are ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from .jsonl import JsonLines, read_jsonl
from .task import HISTORY, Task, TaskError

Status = Literal["in use", "retired", "quarantined", "broken"]
_STATUSES = get_args(Status)
BASELINES = frozenset({"other-sft", "sample", "rejection"})
"""Kinds of ratings by the baselines of a run, which are sampled after RL from policies that come before it."""


@dataclass(frozen=True)
class Rating:
    """Result of one version of a policy: ``solved`` of ``rollouts``, without those lost to infrastructure errors.

    ``policy`` is its display name, ``version`` its PolicyVersion (of the newest token), ``checkpoint`` the digest of
    its files if they were available, ``harness`` the harness hash. ``group`` identifies these rollouts: of two ratings
    of a group the one with more rollouts counts. ``kind``: ``rate``, or the stage of a run (``before``, ``after``,
    ``train``). ``turns`` and ``thinking_tokens`` are means over the rollouts. ``date``: UTC, to the second.
    """

    group: str
    policy: str
    version: int
    rollouts: int
    solved: int
    kind: str
    date: str
    harness: str = ""
    checkpoint: str = ""
    turns: float = 0.0
    thinking_tokens: float = 0.0

    @property
    def baseline(self) -> bool:
        """True for a rating by a baseline of a run, on its development tasks (``rejection-dev-0.3``) too."""
        return self.kind.partition("-dev-")[0] in BASELINES

    def __post_init__(self) -> None:
        if not 0 <= self.solved <= self.rollouts or self.rollouts < 1:
            raise ValueError(f"solved = {self.solved} of rollouts = {self.rollouts}")


@dataclass(frozen=True)
class Mark:
    """A decision about a task, and ``why``. Runs take only tasks that are ``in use``. ``hardened``: names of the harder
    tasks that were made from it."""

    status: Status
    why: str
    date: str
    hardened: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"status {self.status!r} is not one of {', '.join(_STATUSES)}")


@dataclass(frozen=True)
class History:
    """``ratings``: one per group, oldest first. ``mark``: the last decision, or None."""

    ratings: tuple[Rating, ...] = ()
    mark: Mark | None = None

    @property
    def status(self) -> Status:
        return self.mark.status if self.mark is not None else "in use"


def read_history(task: Task) -> History:
    """Read the history of the task as it is now. Raises TaskError that names the file and the line."""
    path = task.path / HISTORY
    if not path.exists():
        return History()
    ratings: dict[str, Rating] = {}
    mark = None
    for number, row in enumerate(read_jsonl(path), 1):
        try:
            if row["task"] != task.digest:
                continue
            if "rating" in row:
                one = _typed(Rating, row["rating"])
                known = ratings.get(one.group)
                if known is None or one.rollouts > known.rollouts:
                    ratings.pop(one.group, None)  # so that the newest rating is the last
                    ratings[one.group] = one
            else:
                mark = _typed(Mark, {**row["mark"], "hardened": tuple(row["mark"]["hardened"])})
        except (KeyError, TypeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise TaskError(f"{path}: entry {number}: {what}; remove that line") from None
    return History(tuple(ratings.values()), mark)


def note_rating(task: Task, rating: Rating) -> bool:
    """Add a rating; return False, and write nothing, if its group has one with as many or more rollouts."""
    known = next((r for r in read_history(task).ratings if r.group == rating.group), None)
    if known is not None and known.rollouts >= rating.rollouts:
        return False
    _add(task, {"rating": asdict(rating)})
    return True


def note_mark(task: Task, mark: Mark) -> bool:
    """Add a decision; return False, and write nothing, if it equals the last one except for its date."""
    last = read_history(task).mark
    if last is not None and (last.status, last.why, last.hardened) == (mark.status, mark.why, mark.hardened):
        return False
    _add(task, {"mark": asdict(mark)})
    return True


def in_use(tasks: Iterable[Task]) -> tuple[list[Task], Counter[str]]:
    """Return the tasks that a run may take, and the number left out per status."""
    kept: list[Task] = []
    left: Counter[str] = Counter()
    for task in tasks:
        status = read_history(task).status
        if status == "in use":
            kept.append(task)
        else:
            left[status] += 1
    return kept, left


def now() -> str:
    """Return the current time as a ``date`` (UTC, to the second)."""
    return at(datetime.now(UTC).timestamp())


def at(seconds: float) -> str:
    """Return a time in Unix seconds as a ``date`` (UTC, to the second)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _add(task: Task, row: dict[str, Any]) -> None:
    JsonLines(task.path / HISTORY).append({"task": task.digest, **row})


def _typed(kind: type[Any], row: dict[str, Any]) -> Any:
    types: dict[str, tuple[type, ...]] = {"str": (str,), "int": (int,), "float": (int, float)}
    for each in fields(kind):
        wanted = types.get(str(each.type))
        if each.name in row and wanted is not None and not isinstance(row[each.name], wanted):
            raise ValueError(f"{each.name} must be of type {each.type}, got {row[each.name]!r}")
    return kind(**row)
