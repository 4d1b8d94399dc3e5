"""Trajectories on disk: an SQL index for queries, Parquet shards for the arrays.

A trajectory is first one row with a compressed blob (one transaction: stored exactly once, by id). ``compact`` moves
blobs of a few hundred trajectories into a Parquet shard. It writes and renames the shard first and updates the rows
second, so a kill in between loses nothing and leaves an unused file, which the next ``compact`` removes.

A blob is a JSON head followed by the raw arrays, compressed, with a checksum. Lengths are checked, and there is no
pickle. A fork that is stored after its parent is compressed against it (``blob.py``) and joined with it when it is
read.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from .blob import Parent, compress, decompress, parent_of
from .fault import is_shortage
from .kept import KeptSets
from .run_directory import DirectoryError
from .segment import Altered, Constraint, Segment, Span
from .trajectory import Effort, Fork, Outcome, ReplyUsage, ToolEvent, Trajectory

_MAGIC = b"WSTR1\n"
_ARRAYS = (("tokens", "<i4"), ("sampled", "|b1"), ("logprobs", "<f4"), ("versions", "<i4"))


def trajectory_to_bytes(trajectory: Trajectory) -> bytes:
    head: dict[str, Any] = {k: v for k, v in vars(trajectory).items() if k != "segments"}
    head["outcome"] = asdict(trajectory.outcome) if trajectory.outcome else None
    head["effort"] = asdict(trajectory.effort)
    head["events"] = [vars(event) for event in trajectory.events]
    head["replies"] = [vars(reply) for reply in trajectory.replies]
    head["fork"] = asdict(trajectory.fork) if trajectory.fork else None
    head["segments"], arrays = [], []
    for segment in trajectory.segments:
        routes = None if segment.routes is None else list(segment.routes.shape)
        spans = [[s.start, s.end, s.role, s.message] for s in segment.spans]
        about = {"length": len(segment), "routes": routes, "spans": spans}
        if segment.constraints:
            about["constraints"] = [constraint.to_json() for constraint in segment.constraints]
        if segment.altered:
            about["altered"] = [a.to_json() for a in segment.altered]
        if segment.kept:
            about["kept"] = [kept.to_json() for kept in segment.kept]
        head["segments"].append(about)
        arrays += [np.ascontiguousarray(getattr(segment, name), dtype).tobytes() for name, dtype in _ARRAYS]
        if segment.routes is not None:
            arrays.append(np.ascontiguousarray(segment.routes, "<i2").tobytes())
    text = json.dumps(head, ensure_ascii=True).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *arrays])


def trajectory_from_bytes(data: bytes) -> Trajectory:
    """Read a trajectory. Raises ValueError for anything that ``trajectory_to_bytes`` did not write."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a trajectory record")
    start = len(_MAGIC) + 8
    size = int.from_bytes(data[len(_MAGIC) : start], "little")
    head = json.loads(data[start : start + size])
    position = start + size
    segments = []
    for item in head.pop("segments"):
        length, values = item["length"], {}
        for name, dtype in _ARRAYS:
            values[name], position = _take(data, position, dtype, length)
        routes = None
        if item["routes"] is not None:
            flat, position = _take(data, position, "<i2", int(np.prod(item["routes"])))
            routes = flat.reshape(item["routes"])
        constraints = [Constraint.from_json(c) for c in item.get("constraints", ())]
        altered = [Altered.from_json(a) for a in item.get("altered", item.get("penalties", ()))]
        kept = [KeptSets.from_json(k) for k in item.get("kept", ())]
        spans = [Span(*s) for s in item["spans"]]
        segments.append(
            Segment(**values, spans=spans, routes=routes, constraints=constraints, altered=altered, kept=kept)
        )
    if position != len(data):
        raise ValueError(f"trajectory record has {len(data) - position} bytes too many")
    head["outcome"] = Outcome(**head["outcome"]) if head["outcome"] else None
    head["effort"] = Effort(**head["effort"])
    head["events"] = [ToolEvent(**event) for event in head["events"]]
    head["summaries"] = [(segment, start, end) for segment, start, end in head.get("summaries", ())]
    head["replies"] = [ReplyUsage(**reply) for reply in head.get("replies", ())]
    head["fork"] = Fork(**head["fork"]) if head.get("fork") else None
    return Trajectory(**head, segments=segments)


def _take(data: bytes, position: int, dtype: str, count: int) -> tuple[Any, int]:
    end = position + np.dtype(dtype).itemsize * count
    if end > len(data):
        raise ValueError("trajectory record is cut short")
    return np.frombuffer(data, dtype, count, position).copy(), end


_schema = sa.MetaData()
_table = sa.Table(
    "trajectories",
    _schema,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("task", sa.String, index=True),
    sa.Column("group_id", sa.String, index=True),
    sa.Column("source", sa.String, index=True),
    sa.Column("status", sa.String),
    sa.Column("resolved", sa.Boolean),
    sa.Column("reward", sa.Float),
    sa.Column("policy", sa.String),
    sa.Column("harness_hash", sa.String),
    sa.Column("version_min", sa.Integer),
    sa.Column("version_max", sa.Integer),
    sa.Column("sampled_tokens", sa.Integer),
    sa.Column("attempts", sa.Integer),
    sa.Column("started", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("effort", sa.Text),
    sa.Column("labels", sa.Text),
    sa.Column("blob", sa.LargeBinary, nullable=True),
    sa.Column("shard", sa.String, nullable=True),
)
_record = (_table.c.id, _table.c.blob, _table.c.shard)
_PARENTS = 16
"""Number of parents that are kept in memory while forks are read: those of a few groups."""


class TrajectoryStore:
    """Trajectories under ``folder``; the index is SQLite there, or any SQLAlchemy ``url`` (``postgresql+psycopg://``).

    Safe for several threads of one process and for one writer beside readers in other processes. Every method raises
    DirectoryError if the index is damaged, those that read trajectories if a shard is, or is missing, and the
    constructor if there are shards and no index.
    """

    def __init__(self, folder: Path | str, url: str | None = None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        index = self.folder / "index.sqlite"
        if url is None and not index.exists() and any(self.folder.glob("shard-*.parquet")):
            # With a new index every shard would be unused, and the next ``compact`` would remove it.
            raise DirectoryError(f"{index} is missing; restore it, or start over in another folder")
        self._engine = sa.create_engine(url or f"sqlite:///{index}")
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _sqlite_pragmas)
            sa.event.listen(self._engine, "handle_error", self._name_damage)
        with self._engine.begin() as connection:  # create_all fails if another process creates the table meanwhile
            connection.execute(sa.schema.CreateTable(_table, if_not_exists=True))
            for each in sorted(_table.indexes, key=lambda each: str(each.name)):
                connection.execute(sa.schema.CreateIndex(each, if_not_exists=True))

    def _name_damage(self, context: sa.engine.ExceptionContext) -> None:
        """Raise DirectoryError in place of an error of SQLite that means that the index is damaged."""
        said = str(context.original_exception)
        if "not a database" in said or "malformed" in said:
            where = self.folder / "index.sqlite"
            raise DirectoryError(
                f"{where} is damaged; restore it, or start over in another folder"
            ) from context.original_exception

    def add(self, trajectory: Trajectory) -> bool:
        """Store a trajectory; return False, and change nothing, if its id is stored already."""
        parent = None if trajectory.fork is None else self._parent(trajectory.fork.parent)
        blob = compress(trajectory_to_bytes(trajectory), parent)
        low, high = trajectory.version_range()
        row = {
            "id": trajectory.id,
            "task": trajectory.task,
            "group_id": trajectory.group,
            "source": trajectory.source,
            "status": trajectory.status,
            "resolved": bool(trajectory.outcome and trajectory.outcome.resolved),
            "reward": trajectory.reward,
            "policy": trajectory.policy,
            "harness_hash": trajectory.harness_hash,
            "version_min": low,
            "version_max": high,
            "sampled_tokens": trajectory.sampled_tokens,
            "attempts": trajectory.attempts,
            "started": trajectory.started,
            "ended": trajectory.ended,
            "effort": json.dumps(vars(trajectory.effort)),
            "labels": json.dumps(trajectory.labels),
            "blob": blob,
        }
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(_table), row)
        except sa.exc.IntegrityError:
            return False
        return True

    def get(self, trajectory_id: str) -> Trajectory | None:
        """Return the trajectory with this id, or None."""
        found = list(self._load(sa.select(*_record).where(_table.c.id == trajectory_id)))
        return found[0] if found else None

    def group(self, group: str) -> list[Trajectory]:
        """Return all stored trajectories of a group, ordered by id."""
        query = sa.select(*_record).where(_table.c.group_id == group)
        return list(self._load(query.order_by(_table.c.id)))

    def ids(self, group: str) -> set[str]:
        with self._engine.connect() as connection:
            return set(connection.scalars(sa.select(_table.c.id).where(_table.c.group_id == group)))

    def rows(self, where: str = "", order_by: str = "started") -> list[dict[str, Any]]:
        """Return index rows without blobs, as dicts; ``where`` is an SQL condition on the index columns."""
        columns = [c for c in _table.c if c.name != "blob"]
        query = sa.select(*columns).order_by(sa.text(order_by))
        if where:
            query = query.where(sa.text(where))
        with self._engine.connect() as connection:
            rows = [dict(row._mapping) for row in connection.execute(query)]
        for row in rows:
            row["effort"], row["labels"] = json.loads(row["effort"]), json.loads(row["labels"])
        return rows

    def __iter__(self) -> Iterator[Trajectory]:
        return self._load(sa.select(*_record).order_by(_table.c.started))

    def __len__(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(_table)) or 0)

    def compact(self, minimum: int = 256) -> int:
        """Move blobs into one Parquet shard when at least ``minimum`` are waiting; return the number moved."""
        with self._engine.connect() as connection:
            query = sa.select(_table.c.id, _table.c.task, _table.c.group_id, _table.c.blob)
            rows = connection.execute(query.where(_table.c.blob.is_not(None))).all()
        if len(rows) < max(1, minimum):
            return 0
        self._drop_unused_shards()
        number = len(list(self.folder.glob("shard-*.parquet")))
        name = f"shard-{number:05d}.parquet"
        while (self.folder / name).exists():
            number += 1
            name = f"shard-{number:05d}.parquet"
        table = pa.table(
            {
                "id": [r.id for r in rows],
                "task": [r.task for r in rows],
                "group": [r.group_id for r in rows],
                "record": pa.array([r.blob for r in rows], pa.large_binary()),
            }
        )
        temporary = self.folder / f".{name}.tmp"
        pq.write_table(table, temporary, compression="none", row_group_size=64)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(self.folder / name)
        with self._engine.begin() as connection:
            for start in range(0, len(rows), 500):
                ids = [r.id for r in rows[start : start + 500]]
                connection.execute(sa.update(_table).where(_table.c.id.in_(ids)).values(shard=name, blob=None))
        return len(rows)

    def close(self) -> None:
        self._engine.dispose()

    def _drop_unused_shards(self) -> None:
        """Delete shards that no row refers to, left by a killed ``compact``; the rows still have their blobs."""
        with self._engine.connect() as connection:
            used = set(connection.scalars(sa.select(_table.c.shard).distinct()))
        for path in self.folder.glob("shard-*.parquet"):
            if path.name not in used:
                path.unlink()

    def _load(self, query: sa.Select[Any]) -> Iterator[Trajectory]:
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        shards: dict[str, dict[str, bytes]] = {}
        parents: dict[str, Parent] = {}
        for row in rows:
            blob = row.blob
            if blob is None:
                if row.shard not in shards:
                    wanted = [r.id for r in rows if r.shard == row.shard]
                    shards[row.shard] = self._read_shard(row.shard, wanted)
                blob = shards[row.shard][row.id]
            try:
                name = parent_of(blob)
                if name is not None and name not in parents:
                    if len(parents) == _PARENTS:
                        del parents[next(iter(parents))]
                    parents[name] = self._needed(name, row.id)
                trajectory = trajectory_from_bytes(decompress(blob, None if name is None else parents[name]))
            except ValueError as error:
                raise self._damaged(row.shard or "index.sqlite") from error
            yield trajectory

    def _parent(self, id: str) -> Parent | None:
        """Return a stored trajectory as the parent of others; None if it is not stored."""
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(*_record).where(_table.c.id == id)).first()
        if row is None:
            return None
        blob = row.blob if row.blob is not None else self._read_shard(row.shard, [id])[id]
        try:
            name = parent_of(blob)
            return Parent(id, decompress(blob, None if name is None else self._needed(name, id)))
        except ValueError as error:
            raise self._damaged(row.shard or "index.sqlite") from error

    def _needed(self, parent: str, fork: str) -> Parent:
        found = self._parent(parent)
        if found is None:
            raise DirectoryError(
                f"{self.folder}: {fork} is stored as a continuation of {parent}, which is missing; restore it, or "
                "start over in another folder"
            )
        return found

    def _read_shard(self, name: str, ids: Sequence[str]) -> dict[str, bytes]:
        try:
            table = pq.read_table(self.folder / name, columns=["id", "record"], filters=[("id", "in", list(ids))])
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and is_shortage(error):
                raise
            raise self._damaged(name) from error
        found = dict(zip(table["id"].to_pylist(), table["record"].to_pylist(), strict=True))
        if not found.keys() >= set(ids):
            raise self._damaged(name)
        return found

    def _damaged(self, name: str) -> DirectoryError:
        return DirectoryError(
            f"{self.folder / name} is missing or damaged; restore it, or start over in another folder"
        )


def _sqlite_pragmas(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA busy_timeout=30000")
    for tries in range(600):
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:  # two that change a new index's mode do not wait for each other
            if "locked" not in str(error) or tries == 599:
                raise
            time.sleep(0.05)
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
