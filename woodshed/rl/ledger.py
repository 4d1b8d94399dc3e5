"""The ledger: which groups were dispatched, are ready, or were trained. It stays exact across kill -9.

A prompt is dispatched only once. A batch is a list of groups decided in one transaction before its file is written;
the file can be made again from the stored trajectories, so no batch is lost or counted twice. Every dispatched rollout
gets one fate: ``trained``, or the reason why it was dropped (``conservation.py`` checks that they add up).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .conservation import IS_FORK, IS_REPLACEMENT

_TABLES = """
CREATE TABLE IF NOT EXISTS groups (
  id TEXT PRIMARY KEY, task TEXT NOT NULL UNIQUE, position INTEGER NOT NULL UNIQUE, version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'ready', 'batched', 'stale', 'failed', 'flat', 'unused')),
  step INTEGER, finished REAL, dispatched INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS batches (step INTEGER PRIMARY KEY, groups TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rollouts (id TEXT PRIMARY KEY, group_id TEXT NOT NULL, fate TEXT, step INTEGER);
CREATE INDEX IF NOT EXISTS rollouts_of_group ON rollouts (group_id);
"""

_KEPT = "state NOT IN ('stale', 'failed', 'flat', 'unused')"
"""SQL condition on a group: true unless it was dropped."""

REASON_OF_STATE = {"stale": "stale", "failed": "unpaired", "flat": "flat_group", "unused": "unused"}
"""Reason why the rollouts of a group that ends in this state are dropped, unless they have a reason of their own."""


class OutOfTasks(Exception):
    """There are too few prompts, as none is trained twice; the message says how many."""


class LedgerError(Exception):
    """The ledger file cannot be used; the message says what to do."""


@dataclass(frozen=True)
class GroupRow:
    id: str
    task: str
    position: int
    version: int
    state: str


def _member_ids(group: str, size: int) -> list[str]:
    return [f"{group}-{n:02d}" for n in range(size)]


class Ledger:
    """SQLite file of groups, batches and rollout fates. Raises LedgerError for a file of an earlier version, which has
    no fates."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA busy_timeout=30000")
        tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "groups" in tables and "rollouts" not in tables:
            self._db.close()
            raise LedgerError(f"{path} is of an earlier version and does not count rollouts; start over with --fresh")
        self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")

    def dispatch(self, task: str, position: int, version: int, size: int) -> GroupRow:
        """Open a group of ``size`` rollouts for a prompt. Raises sqlite3.IntegrityError if it was dispatched before."""
        row = GroupRow(f"g{position:06d}", task, position, version, "open")
        with self._transaction():
            self._db.execute(
                "INSERT INTO groups (id, task, position, version, state, dispatched) VALUES (?, ?, ?, ?, 'open', ?)",
                (row.id, task, position, version, size),
            )
            members = [(id, row.id) for id in _member_ids(row.id, size)]
            self._db.executemany("INSERT INTO rollouts (id, group_id) VALUES (?, ?)", members)
        return row

    def extend(self, group: str, size: int) -> list[str]:
        """Dispatch further members, so that the group has ``size``; return the ids of the new ones."""
        known = set(self.members(group))
        new = [id for id in _member_ids(group, size) if id not in known]
        self._add(group, new)
        return new

    def members(self, group: str) -> list[str]:
        """Return the ids of the group's rollouts in order, without replacements and forks."""
        query = f"SELECT id FROM rollouts WHERE group_id = ? AND NOT {IS_REPLACEMENT} AND NOT {IS_FORK} ORDER BY id"
        return [id for (id,) in self._db.execute(query, (group,))]

    def in_open_groups(self) -> set[str]:
        """Return the ids of the rollouts of open groups, replacements included and forks not."""
        groups = "SELECT id FROM groups WHERE state = 'open'"
        query = f"SELECT id FROM rollouts WHERE NOT {IS_FORK} AND group_id IN ({groups})"
        return {id for (id,) in self._db.execute(query)}

    def replace(self, group: str, member: str, number: int) -> str:
        """Dispatch replacement ``number`` (from 1) of a member, unless that was done before; return its id."""
        id = f"{member}.{number}"
        self._add(group, [id])
        return id

    def fork(self, group: str, ids: Sequence[str]) -> None:
        """Dispatch the forks of a member, with ids ``<member>.f<number>``, unless that was done before."""
        self._add(group, ids)

    def _add(self, group: str, ids: Sequence[str]) -> None:
        with self._transaction():
            query = "INSERT OR IGNORE INTO rollouts (id, group_id) VALUES (?, ?)"
            new = sum(self._db.execute(query, (id, group)).rowcount for id in ids)
            self._db.execute("UPDATE groups SET dispatched = dispatched + ? WHERE id = ?", (new, group))

    def replacements(self) -> int:
        """Return the number of rollouts that were dispatched in place of another one."""
        return self._count(IS_REPLACEMENT)

    def forks(self) -> int:
        """Return the number of rollouts that were dispatched as forks of another one."""
        return self._count(IS_FORK)

    def _count(self, condition: str) -> int:
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM rollouts WHERE {condition}").fetchone()
        return int(count)

    def finished_groups(self) -> list[GroupRow]:
        """Return all groups that ran to their end, in the order in which they finished, whatever their state is now."""
        query = "SELECT id, task, position, version, state FROM groups WHERE finished IS NOT NULL"
        return [GroupRow(*row) for row in self._db.execute(f"{query} ORDER BY finished, position")]

    def dispatched(self) -> set[str]:
        """Return the names of the tasks that were ever dispatched."""
        return {task for (task,) in self._db.execute("SELECT task FROM groups")}

    def open_groups(self) -> list[GroupRow]:
        return self._groups("open", "position")

    def ready_groups(self, window: int | None = None) -> list[GroupRow]:
        """Return the groups that wait for a batch, in the order in which they were dispatched.

        With ``window``, only those that a batch may take: groups before the oldest open group, and groups among the
        ``window`` groups that begin with it. Dropped groups are not counted.
        """
        if window is None:
            return self._groups("ready", "position")
        query = (
            "SELECT id, task, position, version, state FROM groups AS ready WHERE state = 'ready' AND "
            f"(SELECT COUNT(*) FROM groups WHERE {_KEPT} AND position <= ready.position AND position >= "
            "(SELECT MIN(position) FROM groups WHERE state = 'open')) <= ? ORDER BY position"
        )
        return [GroupRow(*row) for row in self._db.execute(query, (window,))]

    def flat_groups(self, step: int) -> list[str]:
        """Return the ids of the groups that dynamic sampling replaced while the batch of ``step`` was being filled."""
        query = "SELECT id FROM groups WHERE state = 'flat' AND step = ? ORDER BY position"
        return [id for (id,) in self._db.execute(query, (step,))]

    def dropped_groups(self, step: int) -> list[str]:
        """Return the ids of the groups that were dropped, for any reason, while the batch of ``step`` was filled."""
        query = "SELECT id FROM groups WHERE state IN ('stale', 'failed', 'flat') AND step = ? ORDER BY position"
        return [id for (id,) in self._db.execute(query, (step,))]

    def decided_groups(self, first: int, last: int) -> list[tuple[str, str]]:
        """Return (id, task) of the groups of the batches ``first`` to ``last``, and of the groups that dynamic sampling
        replaced while these were filled. Once the batch ``last`` is decided, the result never changes."""
        query = (
            "SELECT id, task FROM groups WHERE state IN ('batched', 'flat') AND step BETWEEN ? AND ? ORDER BY position"
        )
        return list(self._db.execute(query, (first, last)))

    def finish(
        self, group: str, state: str, *, fates: Mapping[str, str] | None = None, step: int | None = None
    ) -> None:
        """Set the state of an open or ready group.

        States: ``ready``, ``stale`` (tokens too old), ``failed`` (too few members could be graded, or a broken task),
        ``flat`` (all token weights would be 0), ``unused`` (the run was over). All but ``ready`` drop the group's
        rollouts, for the reasons in ``fates`` (by id), else for that of the state (``REASON_OF_STATE``). ``step``: the
        batch that was being filled when the group was dropped.
        """
        now = None if state == "unused" else time.time()  # a group that was open then has not run to its end
        with self._transaction():
            changed = self._db.execute(
                "UPDATE groups SET state = ?, finished = COALESCE(finished, ?), step = ? WHERE id = ? "
                "AND state IN ('open', 'ready')",
                (state, now, step, group),
            ).rowcount
            if changed and state in REASON_OF_STATE:
                of_group = self._db.execute("SELECT id FROM rollouts WHERE group_id = ?", (group,)).fetchall()
                reasons = [((fates or {}).get(id, REASON_OF_STATE[state]), step, id) for (id,) in of_group]
                self._db.executemany("UPDATE rollouts SET fate = ?, step = ? WHERE id = ?", reasons)

    def batch(self, step: int, groups: list[str]) -> None:
        """Decide the groups of one step, atomically. Raises ValueError if one of them is not ready."""
        with self._transaction():
            self._db.execute("INSERT INTO batches VALUES (?, ?)", (step, json.dumps(groups)))
            for group in groups:
                changed = self._db.execute(
                    "UPDATE groups SET state = 'batched', step = ? WHERE id = ? AND state = 'ready'", (step, group)
                ).rowcount
                if changed != 1:
                    raise ValueError(f"group {group} is not ready and cannot be trained")

    def settle(self, step: int, fates: Mapping[str, str]) -> None:
        """Set the fate of every rollout of the batch of ``step``; repeated with the same fates if the batch is made
        again.

        Raises ValueError for a rollout that was never dispatched or belongs to another batch.
        """
        with self._transaction():
            for id, fate in fates.items():
                changed = self._db.execute(
                    "UPDATE rollouts SET fate = ?, step = ? WHERE id = ? AND group_id IN "
                    "(SELECT id FROM groups WHERE state = 'batched' AND step = ?)",
                    (fate, step, id, step),
                ).rowcount
                if changed != 1:
                    raise ValueError(f"rollout {id} was not dispatched for the batch of step {step}")

    def settled(self) -> int:
        """Return the number of rollouts of settled batches, and of groups dropped while batches were filled."""
        return self._count("step IS NOT NULL")

    def batches(self) -> dict[int, list[str]]:
        return {step: json.loads(groups) for step, groups in self._db.execute("SELECT * FROM batches ORDER BY step")}

    def newest_step(self) -> int:
        """Return the step of the newest batch; 0 if there is none."""
        (step,) = self._db.execute("SELECT MAX(step) FROM batches").fetchone()
        return step or 0

    def next_position(self) -> int:
        (top,) = self._db.execute("SELECT MAX(position) FROM groups").fetchone()
        return 0 if top is None else top + 1

    def counts(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))

    def capacity_used(self) -> int:
        """Return the number of groups that count against the staleness capacity: all but dropped ones."""
        (count,) = self._db.execute(f"SELECT COUNT(*) FROM groups WHERE {_KEPT}").fetchone()
        return int(count)

    def close(self) -> None:
        self._db.close()

    def _groups(self, state: str, order: str) -> list[GroupRow]:
        query = f"SELECT id, task, position, version, state FROM groups WHERE state = ? ORDER BY {order}"
        return [GroupRow(*row) for row in self._db.execute(query, (state,))]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
