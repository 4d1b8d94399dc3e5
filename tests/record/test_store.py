"""The store keeps a trajectory exactly once, through compaction, byte for byte."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

from woodshed.record.blob import compress
from woodshed.record.run_directory import DirectoryError
from woodshed.record.segment import Segment, Span
from woodshed.record.store import TrajectoryStore, trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Effort, Fork, Outcome, ToolEvent, Trajectory


def make(number: int, group: str = "g0", length: int = 7) -> Trajectory:
    rng = np.random.default_rng(number)
    sampled = rng.random(length) < 0.5
    segment = Segment(
        rng.integers(0, 1000, length).astype(np.int32),
        sampled,
        np.where(sampled, -rng.random(length), 0).astype(np.float32),
        np.where(sampled, 3, -1).astype(np.int32),
        [Span(0, 3, "user", 0), Span(3, length, "assistant", 1)],
        rng.integers(-1, 8, (length, 2, 2)).astype(np.int16) if number % 2 else None,
    )
    return Trajectory(
        id=f"{group}-{number}",
        task="org/task",
        group=group,
        source="train",
        harness_hash="h",
        policy="p",
        status="submitted",
        segments=[segment],
        messages=[{"role": "user", "content": "héllo \u2028 \x00"}],
        events=[ToolEvent(0, "read_file", {"path": "a"}, "text")],
        outcome=Outcome(True, {"t": "passed"}),
        effort=Effort(turns=3),
        rewards={"outcome": 1.0, "effort": -0.25},
        started=float(number),
    )


def same(left: Trajectory, right: Trajectory) -> None:
    for a, b in zip(left.segments, right.segments, strict=True):
        for name in ("tokens", "sampled", "logprobs", "versions", "routes"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None and y is None) or (x.dtype == y.dtype and np.array_equal(x, y))
        assert a.spans == b.spans
    assert {k: v for k, v in vars(left).items() if k != "segments"} == {
        k: v for k, v in vars(right).items() if k != "segments"
    }


def test_codec_round_trip_and_cut_short() -> None:
    data = trajectory_to_bytes(make(1))
    same(trajectory_from_bytes(data), make(1))
    for cut in (3, 20, len(data) - 1):
        with pytest.raises(ValueError):
            trajectory_from_bytes(data[:cut])
    with pytest.raises(ValueError, match="too many"):
        trajectory_from_bytes(data + b"x")


def test_add_is_exactly_once_and_survives_compaction(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    assert all(store.add(make(n)) for n in range(6))
    assert not store.add(make(2))
    assert len(store) == 6
    assert store.compact(minimum=7) == 0
    assert store.compact(minimum=2) == 6
    assert store.add(make(9, "g1"))
    assert not store.add(make(3)), "a compacted trajectory is still known"
    store.close()
    again = TrajectoryStore(tmp_path)
    assert [t.id for t in again] == [f"g0-{n}" for n in range(6)] + ["g1-9"]
    for n in range(6):
        found = again.get(f"g0-{n}")
        assert found is not None
        same(found, make(n))
    assert again.ids("g1") == {"g1-9"}
    row = again.rows("group_id = 'g1'")[0]
    assert (row["resolved"], row["reward"], row["effort"]["turns"]) == (True, 0.75, 3)


def test_a_shard_without_rows_is_harmless(tmp_path: Path) -> None:
    """A kill between writing the shard and pointing rows at it."""
    store = TrajectoryStore(tmp_path)
    store.add(make(0))
    (tmp_path / "shard-00000.parquet").write_bytes(b"half written")
    assert store.compact(1) == 1
    found = store.get("g0-0")
    assert found is not None
    same(found, make(0))


def test_shards_without_an_index_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    store.add(make(0))
    store.compact(1)
    store.close()
    for part in tmp_path.glob("index.sqlite*"):
        part.unlink()
    with pytest.raises(DirectoryError, match=r"index\.sqlite is missing"):
        TrajectoryStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["shard-00000.parquet"]


def test_segment_check_names_the_fault() -> None:
    segment = make(1).segments[0]
    segment.check()
    segment.versions[np.flatnonzero(segment.sampled)[0]] = -1
    with pytest.raises(ValueError, match="no policy version"):
        segment.check()


def test_a_kill_inside_compact_leaves_every_id_in_one_shard(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for number in range(4):
        store.add(make(number))
    store.close()
    index = (tmp_path / "index.sqlite").read_bytes()
    store = TrajectoryStore(tmp_path)
    assert store.compact(1) == 4
    store.close()
    for leftover in tmp_path.glob("index.sqlite*"):
        leftover.unlink()
    (tmp_path / "index.sqlite").write_bytes(index)  # as after a kill between shard and index
    store = TrajectoryStore(tmp_path)
    store.add(make(4))
    assert store.compact(1) == 5
    shards = [id for shard in tmp_path.glob("shard-*.parquet") for id in pq.read_table(shard)["id"].to_pylist()]
    assert sorted(shards) == [f"g0-{n}" for n in range(5)]
    assert [t.id for t in store] == sorted(shards)


def test_processes_make_a_store_at_once(tmp_path: Path) -> None:
    code = "import sys, time\nfrom woodshed.record.store import TrajectoryStore\nbegin = float(sys.argv[2])\n"
    code += "for i in range(40):\n while time.time() < begin + i / 50: pass\n TrajectoryStore(f'{sys.argv[1]}/{i}')"
    command = [sys.executable, "-c", code, str(tmp_path), str(time.time() + 2)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]


@pytest.mark.parametrize("compacted", [True, False])
def test_a_changed_bit_is_noticed(tmp_path: Path, compacted: bool) -> None:
    """It would be another token or log-probability."""
    store = TrajectoryStore(tmp_path)
    store.add(make(0))
    store.compact(1 if compacted else 2)
    store.close()
    file = tmp_path / ("shard-00000.parquet" if compacted else "index.sqlite")
    data = bytearray(file.read_bytes())
    data[data.index(zstandard.FRAME_HEADER) + 300] ^= 1
    file.write_bytes(data)
    with pytest.raises(DirectoryError, match=f"{file.name} is missing or damaged"):
        list(TrajectoryStore(tmp_path))


@pytest.mark.parametrize("damage", ["missing", "cut", "another"])
def test_a_shard_that_cannot_be_read_is_named(tmp_path: Path, damage: str) -> None:
    store = TrajectoryStore(tmp_path)
    for number in range(2):
        store.add(make(number))
        assert store.compact(1) == 1
    shard = tmp_path / "shard-00001.parquet"
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(b"PAR1" if damage == "cut" else (tmp_path / "shard-00000.parquet").read_bytes())
    assert store.get("g0-0") is not None
    with pytest.raises(DirectoryError, match=r"shard-00001\.parquet is missing or damaged"):
        list(store)


def fork_of(parent: Trajectory, id: str, *, shared: int, own: int) -> Trajectory:
    """A fork that shares the first tokens with its parent, as context."""
    rng, (theirs,) = np.random.default_rng(own), parent.segments
    sampled = np.arange(shared + own) >= shared
    segment = Segment(
        np.concatenate((theirs.tokens[:shared], rng.integers(0, 1000, own).astype(np.int32))),
        sampled,
        np.where(sampled, -rng.random(shared + own), 0).astype(np.float32),
        np.where(sampled, 3, -1).astype(np.int32),
        [Span(0, shared, "user", 0), Span(shared, shared + own, "assistant", 1)],
    )
    return replace(parent, id=id, segments=[segment], fork=Fork(parent.id, 1, 0, shared))


@pytest.mark.parametrize("length", [2_000, 100_000])
@pytest.mark.parametrize("compacted", ["neither", "the parent", "both"])
def test_a_fork_keeps_only_what_its_parent_lacks(tmp_path: Path, length: int, compacted: str) -> None:
    root = make(0, length=length)
    forks = [fork_of(root, f"g0-0.f{n}", shared=length * 9 // 10, own=length // 10 + n) for n in range(2)]
    forks.append(fork_of(forks[0], "g0-0.f0.f0", shared=length * 19 // 20, own=length // 20))
    store = TrajectoryStore(tmp_path)
    assert store.add(root) and (compacted != "the parent" or store.compact(1) == 1)
    for fork in forks:
        assert store.add(fork) and not store.add(fork)
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        sizes = dict(connection.execute("SELECT id, LENGTH(blob) FROM trajectories"))
    for fork in forks:
        assert sizes[fork.id] < 0.4 * len(compress(trajectory_to_bytes(fork)))
    assert compacted != "both" or store.compact(1) == 4
    store.close()
    store = TrajectoryStore(tmp_path)
    everyone = {t.id: t for t in (root, *forks)}
    for found in (list(store), store.group("g0"), [store.get(id) for id in everyone]):
        assert len(found) == 4
        for trajectory in found:
            assert trajectory is not None
            same(trajectory, everyone[trajectory.id])


def test_a_fork_stored_before_its_parent_needs_none(tmp_path: Path) -> None:
    store, root = TrajectoryStore(tmp_path), make(0, length=500)
    fork = fork_of(root, "g0-0.f0", shared=400, own=50)
    assert store.add(fork) and store.add(root)
    found = store.get(fork.id)
    assert found is not None
    same(found, fork)


def test_a_missing_or_replaced_parent_is_named(tmp_path: Path) -> None:
    store, root = TrajectoryStore(tmp_path), make(0, length=500)
    fork = fork_of(root, "g0-0.f0", shared=400, own=50)
    assert store.add(root) and store.add(fork)
    with sqlite3.connect(tmp_path / "index.sqlite") as connection:
        connection.execute("DELETE FROM trajectories WHERE id = ?", [root.id])
    with pytest.raises(
        DirectoryError, match=r"g0-0\.f0 is stored as a continuation of g0-0, which is missing; restore"
    ):
        store.get(fork.id)
    assert store.add(replace(make(2, length=500), id=root.id))
    with pytest.raises(DirectoryError, match="is missing or damaged"):
        store.get(fork.id)
