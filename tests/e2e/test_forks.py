"""A run with ``rl.forks`` through the real command line: forks are played, trained, credited by node and conserved.

The policy has random weights and a chat format in which every text is a call (``any_text.py``): it writes a file and
runs tests that fail often enough that several groups are forked whatever is sampled, which no policy that a test has
time to train does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from real_runs import SMOKE, woodshed

from tests.chaos.records import check_records, stored_trajectories, trained_on
from tests.e2e.any_text import AnyText
from tests.e2e.random_policy import random_policy
from woodshed.record.jsonl import read_jsonl
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.forking import failed_tests
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.train.batch import TrainBatch

pytestmark = pytest.mark.slow

STEPS, FORKS = 2, 2
SETTINGS = (
    'policy.format="any_text:AnyText"',
    "learn.demonstrations.episodes=0",
    "learn.mtp.steps=0",
    "learn.solved.after_rl=true",
    "tasks.synthetic={train=10, sft=1, dev=1, heldout=1, checked=2}",
    'harness.tools=["write_file", "run_tests", "finish"]',
    "harness.limits={turns=8, sampled_tokens=80, turn_tokens=3, context_tokens=400, wall_seconds=600.0}",
    f"rl.steps={STEPS}",
    'rl.algorithm="tree"',
    f"rl.forks.count={FORKS}",
    "rl.hints.weight=0",
    "evaluate={tasks=1, samples=1, dev_tasks=1, temperatures=[1.0], baselines=false}",
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    folder = tmp_path_factory.mktemp("forks")
    shutil.copy(Path(__file__).parent / "any_text.py", folder)
    settings = (f'policy.source="{random_policy(folder / "start", AnyText())}"', *SETTINGS)
    options = [part for setting in settings for part in ("--set", setting)]
    done = woodshed(folder, "run", str(SMOKE), "--out", folder / "run", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


@pytest.fixture(scope="module")
def everyone(root: Path) -> dict[str, Trajectory]:
    return {t.id: t for t in trained_on(root)}


def test_the_records_are_whole(root: Path) -> None:
    check_records(root)
    assert set(stored_trajectories(root).values()) == {1}, "stored twice"


def test_the_ledger_balances_with_forks(root: Path, everyone: Mapping[str, Trajectory]) -> None:
    rollouts = json.loads((root / "summary.json").read_text())["rollouts"]
    assert rollouts["error"] == "" and rollouts["undecided"] == rollouts["replacements"] == 0
    assert rollouts["dispatched"] == rollouts["trained"] + sum(rollouts["dropped"].values()) == len(everyone)
    forks = [t for t in everyone.values() if t.fork is not None]
    assert rollouts["forks"] == len(forks) > 0 and "infra_error" not in {t.status for t in everyone.values()}
    lines = read_jsonl(root / "metrics" / "rollouts.jsonl")
    assert sum(line["forks"] for line in lines) == sum(t.fork is not None for t in everyone.values())
    assert not any(line["abandoned_forks"] or line["replacements"] for line in lines)
    assert lines[-1]["forks_dispatched"] == len(forks)


def test_each_first_failed_test_is_forked_and_each_fork_goes_on_its_own_way(everyone: Mapping[str, Trajectory]) -> None:
    forks = [t for t in everyone.values() if t.fork is not None]
    expected = {t.id: failed_tests(t)[0] for t in everyone.values() if t.fork is None and failed_tests(t)}
    assert {t.fork.parent: t.fork.replies for t in forks if t.fork} == expected
    assert len({t.group for t in forks}) > 1 and len(forks) == FORKS * len(expected)
    for fork in forks:
        assert fork.fork is not None
        parent, count = everyone[fork.fork.parent], fork.fork.replies
        assert fork.replies[:count] == parent.replies[:count] and len(fork.replies) > count
        assert fork.replies[count].asked_seconds >= parent.replies[count].asked_seconds > 0, "what was left is left"
        known = [(e.name, e.arguments, e.error) for e in parent.events if e.turn <= count]
        assert [(e.name, e.arguments, e.error) for e in fork.events][: len(known)] == known
    own = [(t.fork.parent, tuple(t.segments[0].tokens[t.fork.tokens :].tolist())) for t in forks if t.fork]
    assert len(set(own)) > len(expected), "siblings say the same"


def test_what_was_trained_is_credited_by_node(root: Path, everyone: Mapping[str, Trajectory]) -> None:
    """The weights in the batch files that the trainer keeps against rewards and fork points in the records."""
    trained_forks = 0
    for path in (root / "batches").glob("step-*.safetensors"):
        batch = TrainBatch.load(path)
        trained_forks += sum(everyone[id].fork is not None for id in batch.trajectories)
        for row, id in enumerate(batch.trajectories):
            expected = credit(everyone[id], [t for t in everyone.values() if t.group == everyone[id].group])
            got = batch.weights["rl"][batch.offsets[row] : batch.offsets[row + 1]]
            np.testing.assert_allclose(got, expected, atol=1e-6)
    assert trained_forks > 0


def credit(trajectory: Trajectory, group: list[Trajectory]) -> np.ndarray:
    """Before the node V - mean(V), after it R - V, where V is the mean reward of the continuations of a root."""

    def siblings(root: str) -> list[Trajectory]:
        return [t for t in group if root in (t.id, t.fork and t.fork.parent)]

    values = {t.id: np.mean([s.reward for s in siblings(t.id)]) for t in group if t.fork is None}
    mine = trajectory.id if trajectory.fork is None else trajectory.fork.parent
    (segment,) = trajectory.segments
    weight = np.full(len(segment), values[mine] - np.mean(list(values.values())))
    fork = next((t.fork for t in siblings(mine) if t.fork is not None), None)
    if fork is not None:
        weight[fork.tokens :] = trajectory.reward - values[mine]
    return np.where(segment.sampled, weight, 0)
