"""What must hold in a run directory whatever was killed: counted over the files themselves, not through our readers."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from real_runs import GROUP_SIZE, GROUPS_PER_STEP, STEPS
from safetensors.torch import load_file

from woodshed.record.store import TrajectoryStore
from woodshed.train.batch import TrainBatch
from woodshed.weights.chain import verify_chain
from woodshed.weights.follow import Follower


def query(path: Path, sql: str) -> list[tuple]:
    """Rows of an SQLite file that another process may be writing; none while it does not exist."""
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as db:
            return db.execute(sql).fetchall()
    except sqlite3.OperationalError:
        return []


def batches(root: Path) -> dict[int, list[str]]:
    rows = query(root / "state.sqlite", "SELECT step, groups FROM batches ORDER BY step")
    return {step: json.loads(groups) for step, groups in rows}


def episodes(root: Path) -> int:
    rows = query(root / "trajectories" / "index.sqlite", "SELECT COUNT(*) FROM trajectories WHERE source = 'train'")
    return rows[0][0] if rows else 0


def check_ledger(root: Path) -> None:
    decided = batches(root)
    assert sorted(decided) == list(range(1, STEPS + 1))
    trained = [group for groups in decided.values() for group in groups]
    assert len(trained) == len(set(trained)) == STEPS * GROUPS_PER_STEP
    rows = query(root / "state.sqlite", "SELECT id, task, state, step FROM groups")
    assert len({task for _, task, _, _ in rows}) == len(rows), "a prompt was dispatched twice"
    assert {id: step for id, _, state, step in rows if state == "batched"} == {
        group: step for step, groups in decided.items() for group in groups
    }
    assert not [row for row in rows if row[2] in ("open", "ready")], "the ledger was left open"


def check_trajectories(root: Path) -> None:
    folder = root / "trajectories"
    index = query(folder / "index.sqlite", "SELECT id, group_id, source, shard, blob IS NOT NULL FROM trajectories")
    in_shards = Counter(id for shard in folder.glob("shard-*.parquet") for id in pq.read_table(shard)["id"].to_pylist())
    waiting = Counter(id for id, _, _, _, blob in index if blob)
    assert max((in_shards + waiting).values()) == 1, "a trajectory is stored twice"
    assert set(in_shards + waiting) == {row[0] for row in index}, "index and shards disagree"
    trained = {group for groups in batches(root).values() for group in groups}
    stored = Counter(group for _, group, source, _, _ in index if source == "train")
    ids = {row[0] for row in index}
    missing = {f"{group}-{n:02d}" for group in trained for n in range(GROUP_SIZE)} - ids
    assert not missing, "trained, but not stored"
    assert {group: stored[group] for group in trained} == dict.fromkeys(trained, GROUP_SIZE)
    dispatched = {id for (id,) in query(root / "state.sqlite", "SELECT id FROM groups")}
    assert set(stored) <= dispatched


def check_tokens(root: Path) -> None:
    store = TrajectoryStore(root / "trajectories")
    trajectories = [t for t in store if t.source == "train"]
    store.close()
    for trajectory in trajectories:
        assert trajectory.status != "infra_error", trajectory.error
        assert trajectory.sampled_tokens > 0
        for segment in trajectory.segments:
            segment.check()
            assert np.all(segment.versions[segment.sampled] >= 0) and np.all(segment.versions <= STEPS)
            logprobs = segment.logprobs[segment.sampled]
            assert np.all(np.isfinite(logprobs)) and np.all(logprobs <= 0) and np.any(logprobs < 0)


def check_batch_files(root: Path) -> None:
    for path in (root / "batches").glob("step-*.safetensors"):
        batch = TrainBatch.load(path)
        wanted = {f"{group}-{n:02d}" for group in batches(root)[batch.step] for n in range(GROUP_SIZE)}
        assert set(batch.trajectories) <= wanted
    for name in ("trainer", "rollouts"):
        lines = (root / "metrics" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, STEPS + 1)), name


def check_weights(root: Path) -> None:
    assert verify_chain(root / "weights")[-1] == STEPS
    newest = Follower(root / "weights").poll()
    assert newest is not None
    head = newest[1]
    final = load_file(root / "policy" / "final" / "model.safetensors")
    checkpoint = load_file(root / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors")
    start = load_file(root / "policy" / "sft" / "model.safetensors")
    assert set(final) == set(head) == set(checkpoint) == set(start)
    for name, tensor in head.items():
        for other in (final[name], checkpoint[name]):
            assert other.dtype == tensor.dtype
            assert torch.equal(other.view(torch.int32), tensor.view(torch.int32)), name
    assert any(not torch.equal(start[name], tensor) for name, tensor in head.items()), "nothing was learned"


def check_records(root: Path) -> None:
    for check in (check_ledger, check_trajectories, check_tokens, check_batch_files, check_weights):
        check(root)
