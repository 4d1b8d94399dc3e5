"""What was dispatched, what is ready, what was trained: the controller's memory, exact across kill -9.

A prompt is dispatched once, ever. A batch is a list of groups decided in one transaction before its file is written;
the file can be made again from the stored trajectories, so no batch is lost or counted twice.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

_TABLES = """
CREATE TABLE IF NOT EXISTS groups (
  id TEXT PRIMARY KEY, task TEXT NOT NULL UNIQUE, position INTEGER NOT NULL UNIQUE, version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'batched', 'stale', 'failed', 'unused')),
  step INTEGER, finished REAL);
CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, groups TEXT NOT NULL);
"""


class OutOfTasks(Exception):
    """A prompt is never trained twice, and there are too few; the message says how many."""


@dataclass(frozen=True)
class GroupRow:
    id: str
    task: str
    position: int
    version: int
    state: str


class Ledger:
    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA busy_timeout=30000")
        self._db.executescript(_TABLES)

    def dispatch(self, task: str, position: int, version: int) -> GroupRow:
        """Open a group for a prompt; sqlite3.IntegrityError if the prompt was ever dispatched before."""
        row = GroupRow(f"g{position:06d}", task, position, version, "open")
        self._db.execute(
            "INSERT INTO groups (id, task, position, version, state) VALUES (?, ?, ?, ?, 'open')",
            (row.id, task, position, version),
        )
        return row

    def finished_groups(self) -> list[GroupRow]:
        """Groups that ran to their end, whatever became of them then, in that order."""
        query = "SELECT id, task, position, version, state FROM groups WHERE finished IS NOT NULL"
        return [
            GroupRow(*row) for row in self._db.execute(f"{query} AND state != 'unused' ORDER BY finished, position")
        ]

    def dispatched(self) -> set[str]:
        """Tasks that were ever dispatched."""
        return {task for (task,) in self._db.execute("SELECT task FROM groups")}

    def open_groups(self) -> list[GroupRow]:
        return self._groups("open", "position")

    def ready_groups(self) -> list[GroupRow]:
        """Finished groups in the order in which they finished."""
        return self._groups("ready", "finished, position")

    def finish(self, group: str, state: str) -> None:
        """``ready``, ``stale`` (swept), ``failed`` (too few members could be graded), ``unused`` (the run was over)."""
        self._db.execute(
            "UPDATE groups SET state = ?, finished = ? WHERE id = ? AND state IN ('open', 'ready')",
            (state, time.time(), group),
        )

    def batch(self, step: int, groups: list[str]) -> None:
        """Decide the groups of one step: all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute("INSERT INTO batches VALUES (?, ?)", (step, json.dumps(groups)))
            for group in groups:
                changed = self._db.execute(
                    "UPDATE groups SET state = 'batched', step = ? WHERE id = ? AND state = 'ready'", (step, group)
                ).rowcount
                if changed != 1:
                    raise ValueError(f"group {group} is not ready and cannot be trained")
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise

    def batches(self) -> dict[int, list[str]]:
        return {step: json.loads(groups) for step, groups in self._db.execute("SELECT * FROM batches ORDER BY step")}

    def next_position(self) -> int:
        (top,) = self._db.execute("SELECT MAX(position) FROM groups").fetchone()
        return 0 if top is None else top + 1

    def counts(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))

    def capacity_used(self) -> int:
        """Groups that count against the staleness capacity: all but those that will never be trained."""
        (count,) = self._db.execute(
            "SELECT COUNT(*) FROM groups WHERE state NOT IN ('stale', 'failed', 'unused')"
        ).fetchone()
        return int(count)

    def close(self) -> None:
        self._db.close()

    def _groups(self, state: str, order: str) -> list[GroupRow]:
        query = f"SELECT id, task, position, version, state FROM groups WHERE state = ? ORDER BY {order}"
        return [GroupRow(*row) for row in self._db.execute(query, (state,))]
