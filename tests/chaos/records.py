"""What must hold in a run directory whatever was killed: counted over the files themselves, not through our readers."""

from __future__ import annotations

import json
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from gateway.real import logprob_gap
from safetensors.torch import load_file

from woodshed.policy.hf import load_decoder
from woodshed.policy.state import load_hf_state
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
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


@dataclass(frozen=True)
class Shape:
    """How much RL a run does, as its recipe says. ``budget``: tokens of a rollout in a denominator; ``forks``: of each
    member of a group that is forked."""

    steps: int
    groups_per_step: int
    group_size: int
    budget: int
    forks: int

    @staticmethod
    def of(root: Path) -> Shape:
        rl = tomllib.loads((root / "recipe.toml").read_text())["rl"]
        return Shape(
            steps=rl["steps"],
            groups_per_step=rl["groups_per_step"],
            group_size=rl["group_size"],
            budget=rl["generation_budget"],
            forks=rl["forks"]["count"],
        )


def members(root: Path, groups: Iterable[str]) -> set[str]:
    """Ids of the members of groups, which every run has."""
    return {f"{group}-{n:02d}" for group in groups for n in range(Shape.of(root).group_size)}


def extra(root: Path) -> dict[str, str]:
    """Member by id of each replacement ``MEMBER.1`` and each fork ``MEMBER.f0`` that the ledger has, which a run may
    have or not; the fork of a replacement is ``MEMBER.1.f0``."""
    rows = query(root / "state.sqlite", "SELECT id, group_id FROM rollouts")
    found = {id: id.partition(".")[0] for id, _ in rows if "." in id}
    assert all(found.get(id, id).rpartition("-")[0] == group for id, group in rows), "a rollout of another group"
    return found


def episodes(root: Path) -> int:
    rows = query(root / "trajectories" / "index.sqlite", "SELECT COUNT(*) FROM trajectories WHERE source = 'train'")
    return rows[0][0] if rows else 0


def resumed(root: Path) -> int:
    """Number of training rollouts that went on after their process had died."""
    rows = query(root / "trajectories" / "index.sqlite", "SELECT labels FROM trajectories WHERE source = 'train'")
    return sum("resumed" in json.loads(labels) for (labels,) in rows)


def check_ledger(root: Path) -> None:
    decided, shape = batches(root), Shape.of(root)
    assert sorted(decided) == list(range(1, shape.steps + 1))
    trained = [group for groups in decided.values() for group in groups]
    assert len(trained) == len(set(trained)) == shape.steps * shape.groups_per_step
    rows = query(root / "state.sqlite", "SELECT id, task, state, step FROM groups")
    assert len({task for _, task, _, _ in rows}) == len(rows), "a prompt was dispatched twice"
    assert {id: step for id, _, state, step in rows if state == "batched"} == {
        group: step for step, groups in decided.items() for group in groups
    }
    assert not [row for row in rows if row[2] in ("open", "ready")], "the ledger was left open"


def stored_trajectories(root: Path) -> Counter[str]:
    """How often each id is stored, in shards and in rows that wait for one."""
    folder = root / "trajectories"
    in_shards = Counter(id for shard in folder.glob("shard-*.parquet") for id in pq.read_table(shard)["id"].to_pylist())
    rows = query(folder / "index.sqlite", "SELECT id FROM trajectories WHERE blob IS NOT NULL")
    return in_shards + Counter(id for (id,) in rows)


def lost_or_doubled(root: Path) -> int:
    """Trajectories of trained groups that are not stored, and copies of any that are stored more than once."""
    stored = stored_trajectories(root)
    wanted = members(root, (group for groups in batches(root).values() for group in groups))
    wanted |= {id for id, member in extra(root).items() if member in wanted}
    return len(wanted - set(stored)) + sum(count - 1 for count in stored.values())


def check_conservation(root: Path) -> None:
    """Every rollout has one fate; those that were trained are those of the batches that the trainer has read."""
    rows = query(root / "state.sqlite", "SELECT id, fate, step FROM rollouts")
    (dispatched,) = query(root / "state.sqlite", "SELECT SUM(dispatched) FROM groups")[0]
    fates = Counter(fate for _, fate, _ in rows)
    assert len(rows) == dispatched == fates.total() and None not in fates, fates
    stored = set(stored_trajectories(root))
    assert {id for id, fate, _ in rows if fate != "unused"} <= stored
    by_step = Counter(step for _, fate, step in rows if fate == "trained")
    for name, key in (("trainer", "rollouts"), ("rollouts", "trained")):
        lines = [json.loads(line) for line in (root / "metrics" / f"{name}.jsonl").read_text().splitlines()]
        assert {line["step"]: line[key] for line in lines} == dict(by_step), name


def check_trajectories(root: Path) -> None:
    stored = stored_trajectories(root)
    index = query(root / "trajectories" / "index.sqlite", "SELECT id, group_id, source FROM trajectories")
    assert lost_or_doubled(root) == 0
    assert set(stored) == {row[0] for row in index}, "index and shards disagree"
    trained = {group for groups in batches(root).values() for group in groups}
    groups = {id: group for id, group, source in index if source == "train"}
    among = extra(root)
    wanted = members(root, trained) | {id for id, member in among.items() if member.rpartition("-")[0] in trained}
    assert {id for id, group in groups.items() if group in trained} == wanted
    dispatched = {id for (id,) in query(root / "state.sqlite", "SELECT id FROM groups")}
    assert set(groups.values()) <= dispatched


def check_forks(root: Path) -> None:
    """A member has all its forks or none; each begins with the tokens of its root, which are context in it."""
    everyone, count = {t.id: t for t in trained_on(root)}, Shape.of(root).forks
    forks: dict[str, set[str]] = {}
    for id in extra(root):
        parent, mark, _ = id.rpartition(".f")
        if mark:
            forks.setdefault(parent, set()).add(id)
    assert all(ids == {f"{parent}.f{n}" for n in range(count)} for parent, ids in forks.items())
    assert {t.id for t in everyone.values() if t.fork is not None} <= {id for ids in forks.values() for id in ids}
    for parent, ids in forks.items():
        theirs = everyone[parent]
        for fork in (everyone[id] for id in ids if id in everyone):
            assert fork.fork is not None and fork.fork.parent == parent and theirs.fork is None
            if fork.status == "infra_error":
                continue
            shared, before = fork.fork.tokens, theirs.segments[fork.fork.segment]
            ours = fork.segments[0]
            assert ours.tokens[:shared].tolist() == before.tokens[:shared].tolist() and before.sampled[:shared].any()
            assert not ours.sampled[:shared].any() and ours.sampled[shared], "the first own token follows the state"
            assert fork.replies[: fork.fork.replies] == theirs.replies[: fork.fork.replies]


def trained_on(root: Path) -> list[Trajectory]:
    store = TrajectoryStore(root / "trajectories")
    try:
        return [t for t in store if t.source == "train"]
    finally:
        store.close()


def infra_errors(root: Path) -> list[str]:
    """Return the errors of episodes that were given up after ``rl.attempts`` tries; they are stored, and masked."""
    return [t.error for t in trained_on(root) if t.status == "infra_error"]


def check_tokens(root: Path) -> None:
    steps = Shape.of(root).steps
    for trajectory in trained_on(root):
        if trajectory.status == "infra_error":
            assert not trajectory.segments
            continue
        assert trajectory.sampled_tokens > 0
        for segment in trajectory.segments:
            segment.check()
            assert np.all(segment.versions[segment.sampled] >= 0) and np.all(segment.versions <= steps)
            logprobs = segment.logprobs[segment.sampled]
            assert np.all(np.isfinite(logprobs)) and np.all(logprobs <= 0) and np.any(logprobs < 0)


def check_logprobs(root: Path) -> None:
    """What one version alone has sampled has the log-probabilities that the chain's weights of this version give.

    An engine that is given new weights between a prompt and its first token goes on with old keys and values.
    """
    policy = load_decoder(root / "policy" / "sft")
    segments = [segment for trajectory in trained_on(root) for segment in trajectory.segments]
    gaps = []
    for version in verify_chain(root / "weights"):
        found = Follower(root / "weights").poll(up_to=version)
        assert found is not None and found[0] == version
        load_hf_state(policy, found[1])
        alone = [s for s in segments if set(s.versions[s.sampled].tolist()) == {version}]
        gaps += [logprob_gap(policy, segment) for segment in alone]
    assert len(gaps) >= Shape.of(root).group_size and np.quantile(gaps, 0.9) < 1e-4, sorted(gaps)[-10:]


def check_batch_files(root: Path) -> None:
    shape = Shape.of(root)
    for path in (root / "batches").glob("step-*.safetensors"):
        batch = TrainBatch.load(path)
        wanted = members(root, batches(root)[batch.step])
        wanted |= {id for id, member in extra(root).items() if member in wanted}
        assert set(batch.trajectories) <= wanted
        assert batch.denominators["rl"] == shape.groups_per_step * shape.group_size * shape.budget, "forks do not count"
    for name in ("trainer", "rollouts"):
        lines = (root / "metrics" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, shape.steps + 1)), name


def check_weights(root: Path) -> None:
    steps = Shape.of(root).steps
    assert verify_chain(root / "weights")[-1] == steps
    newest = Follower(root / "weights").poll()
    assert newest is not None
    head = newest[1]
    trained = "rl" if (root / "policy" / "rl").exists() else "final"
    final = load_file(root / "policy" / trained / "model.safetensors")
    checkpoint = load_file(root / "checkpoints" / f"step-{steps:06d}" / "model.safetensors")
    start = load_file(root / "policy" / "sft" / "model.safetensors")
    assert set(final) == set(head) == set(checkpoint) == set(start)
    for name, tensor in head.items():
        for other in (final[name], checkpoint[name]):
            assert other.dtype == tensor.dtype
            assert torch.equal(other.view(torch.int32), tensor.view(torch.int32)), name
    assert any(not torch.equal(start[name], tensor) for name, tensor in head.items()), "nothing was learned"


CHECKS = (
    check_ledger,
    check_conservation,
    check_trajectories,
    check_forks,
    check_tokens,
    check_logprobs,
    check_batch_files,
    check_weights,
)


def check_records(root: Path) -> None:
    for check in CHECKS:
        check(root)
