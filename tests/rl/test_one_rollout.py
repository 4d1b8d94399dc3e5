"""Groups of one rollout through the real controller: REINFORCE with a baseline for each kind of task."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.train.batch import TrainBatch

from .test_conservation import interrupted
from .trained import trained

SETTINGS = RLSettings(
    steps=6,
    groups_per_step=4,
    group_size=1,
    concurrency=4,
    algorithm="reinforce",
    algorithm_options={"by": "kind", "half_life": 1e9, "least_seen": 3},
)


def paid(task: Task, _: Trajectory, __: Outcome) -> dict[str, float]:
    """Easy tasks are always solved, every second one of the others."""
    return {"played": 1.0 if task.info.kind == "easy" else float(int(task.name[-2:]) // 2 % 2)}


def weights_of(batch: TrainBatch) -> dict[str, float]:
    """Weight of the sampled tokens of each rollout."""
    found = {}
    for number, id in enumerate(batch.trajectories):
        start, end = batch.offsets[number : number + 2]
        (found[id],) = {float(weight) for weight in batch.weights["rl"][start:end] if weight}
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_advantages_reach_the_trainer(tmp_path: Path, killed: bool) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))

    async def main() -> None:
        async with trained(tmp_path, 24, reward=paid) as at:
            for number, task in enumerate(at.tasks):
                at.tasks[number] = replace(task, info=replace(task.info, kind="hard" if number % 2 else "easy"))
            if killed:
                await interrupted(at, SETTINGS, lambda: len(at.trained) >= 3)
            await at.run(SETTINGS)
            found = at.conserved()
            assert found.trained > 6 and found.trained + found.dropped["zero_advantage"] == 24

    asyncio.run(main())
    store, ledger = TrajectoryStore(tmp_path / "store"), Ledger(tmp_path / "state.sqlite")
    seen: list[Trajectory] = []
    for step, groups in ledger.batches().items():
        made = [store.group(group)[0] for group in groups]
        expected = {}
        for trajectory in made:
            own = [t.reward for t in seen if t.labels["kind"] == trajectory.labels["kind"]]
            known = own if len(own) >= 3 else [t.reward for t in seen]
            if len(known) >= 3 and (advantage := trajectory.reward - float(np.mean(known))):
                expected[trajectory.id] = pytest.approx(advantage, abs=1e-6)
        batch = TrainBatch.load(tmp_path / "batches" / f"step-{step:06d}.safetensors")
        assert weights_of(batch) == expected
        seen += made
    kinds = {t.id: t.labels["kind"] for t in seen}
    assert set(kinds.values()) == {"easy", "hard"}
    assert {kinds[id] for id in expected} == {"hard"}, "easy tasks are compared with easy ones, and teach nothing"
    store.close()
    ledger.close()
