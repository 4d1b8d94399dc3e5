"""Record of the tasks that a run has planned, made and checked: tables in the ledger's file.

A task is planned before it is made, and used only after it is recorded as made, with the digest of its files. A task
that was still planned when the process was killed is made again: the same name gives the same task.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from woodshed.rl.conservation import open_read_only

_TABLES = """
CREATE TABLE IF NOT EXISTS made (
  step INTEGER NOT NULL, number INTEGER NOT NULL, bugs TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('planned', 'made', 'refused')),
  task TEXT UNIQUE, digest TEXT, why TEXT, PRIMARY KEY (step, number));
CREATE TABLE IF NOT EXISTS checked (
  task TEXT PRIMARY KEY, step INTEGER NOT NULL, sound INTEGER NOT NULL, why TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Plan:
    """Task ``number`` of the tasks to make after ``step``, with one bug for each entry (a kind) of ``bugs``."""

    step: int
    number: int
    bugs: tuple[str, ...]


class GrowthRecord:
    def __init__(self, ledger: Path) -> None:
        ledger.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(ledger, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA busy_timeout=30000")
        self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")

    def plan(self, step: int, tasks: Sequence[Sequence[str]]) -> None:
        """Plan ``tasks`` (the bug kinds of each) to be made after ``step``; those planned before stay as they are."""
        rows = [(step, number, "+".join(bugs)) for number, bugs in enumerate(tasks)]
        query = "INSERT OR IGNORE INTO made (step, number, bugs, state) VALUES (?, ?, ?, 'planned')"
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(query, rows)
        self._db.execute("COMMIT")

    def planned(self) -> list[Plan]:
        query = "SELECT step, number, bugs FROM made WHERE state = 'planned' ORDER BY step, number"
        return [Plan(step, number, tuple(bugs.split("+"))) for step, number, bugs in self._db.execute(query)]

    def note_made(self, plan: Plan, task: str, digest: str) -> None:
        query = "UPDATE made SET state = 'made', task = ?, digest = ? WHERE step = ? AND number = ?"
        self._db.execute(query, (task, digest, plan.step, plan.number))

    def note_refused(self, plan: Plan, why: str) -> None:
        query = "UPDATE made SET state = 'refused', why = ? WHERE step = ? AND number = ?"
        self._db.execute(query, (why, plan.step, plan.number))

    def made(self) -> dict[str, str]:
        """Return the digests of the tasks that were made, by name, in the order in which they were planned."""
        return dict(self._db.execute("SELECT task, digest FROM made WHERE state = 'made' ORDER BY step, number"))

    def note_checked(self, task: str, step: int, *, sound: bool, why: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO checked VALUES (?, ?, ?, ?)", (task, step, int(sound), why))

    def checked(self) -> dict[str, bool]:
        """Return whether the reference solution passed, by task."""
        return {task: bool(sound) for task, sound in self._db.execute("SELECT task, sound FROM checked")}

    def checks_of(self, step: int) -> int:
        """Return the number of tasks that were checked while the batch of ``step`` was filled."""
        (count,) = self._db.execute("SELECT COUNT(*) FROM checked WHERE step = ?", (step,)).fetchone()
        return int(count)

    def counts(self) -> dict[str, int]:
        return _counts(self._db)

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True)
class Grown:
    """Content of a growth record. ``counts``: see ``_counts``. ``taken_out``: reason by task. ``refused``: reason by
    bugs of the task."""

    counts: dict[str, int]
    taken_out: dict[str, str]
    refused: dict[str, str]


def read_growth(ledger: Path) -> Grown | None:
    """Read the growth record from a ledger file, opened read-only; None if nothing was planned or checked."""
    if not ledger.exists():
        return None
    with closing(open_read_only(ledger)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"made", "checked"} <= tables:
            return None
        counts = _counts(db)
        taken_out = dict(db.execute("SELECT task, why FROM checked WHERE NOT sound ORDER BY task"))
        refused = dict(db.execute("SELECT bugs, why FROM made WHERE state = 'refused' ORDER BY step, number"))
    return Grown(counts, taken_out, refused) if any(counts.values()) else None


def _counts(db: sqlite3.Connection) -> dict[str, int]:
    """Return the number of tasks by state: ``made``, ``planned`` (still to be made), ``refused`` (could not be made, or
    failed a gate) and ``checked``, which is the sum of ``hard`` (no rollout solved the task, and its solution passes)
    and ``taken_out`` (its solution fails)."""
    states = dict(db.execute("SELECT state, COUNT(*) FROM made GROUP BY state"))
    sound = dict(db.execute("SELECT sound, COUNT(*) FROM checked GROUP BY sound"))
    return {
        "made": states.get("made", 0),
        "planned": states.get("planned", 0),
        "refused": states.get("refused", 0),
        "checked": sum(sound.values()),
        "hard": sound.get(1, 0),
        "taken_out": sound.get(0, 0),
    }
