"""``rl.probes``: the rest of a group is run only where its first rollouts disagree, also across restarts."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from gateway.parts import HERMES

from woodshed.record.jsonl import read_jsonl
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rl.forks import ForkSettings
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import DynamicSamplingSettings, RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.stages.baselines import _samples, tasks_of_rl
from woodshed.stages.rl import describe

from .test_conservation import count, interrupted
from .trained import DONE, trained

SETTINGS = RLSettings(steps=3, groups_per_step=3, group_size=5, probes=2, concurrency=4)


class Sometimes:
    """Plays a policy that writes the fix of the only task in six of ten episodes, at random, and then finishes."""

    def __init__(self) -> None:
        self.fix, self.rng = "", random.Random(1)

    def know(self, task: Task) -> None:
        ((path, fix),) = task.solution_files().items()
        self.fix = json.dumps({"name": "write_file", "arguments": {"path": path, "content": fix.decode()}})

    def __call__(self, tokens: list[int]) -> list[int]:
        if self.fix in HERMES.decode(tokens) or self.rng.random() < 0.4:
            return list(DONE)
        return HERMES.encode(f"<tool_call>\n{self.fix}\n</tool_call><|im_end|>", allow_special=True)


@pytest.fixture(autouse=True)
def boxes() -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))


def solved(trajectory: Trajectory) -> bool:
    return bool(trajectory.outcome and trajectory.outcome.resolved)


def outcome(_: Task, __: Trajectory, outcome: Outcome) -> dict[str, float]:
    return {"outcome": float(outcome.resolved)}


def trained_groups(folder: Path) -> dict[str, list[Trajectory]]:
    """The groups that were trained, after a check of the sizes of all."""
    store, ledger = TrajectoryStore(folder / "store"), Ledger(folder / "state.sqlite")
    trained = {name: store.group(name) for names in ledger.batches().values() for name in names}
    for name, group in trained.items():
        disagree = len({solved(t) for t in group[:2]}) == 2
        assert [t.id for t in group] == ledger.members(name) == [f"{name}-{n:02d}" for n in range(5 if disagree else 2)]
    store.close()
    ledger.close()
    return trained


def of_probes(groups: Iterable[list[Trajectory]]) -> float:
    return fmean(solved(t) for group in groups for t in group[:2])


def rates_of_probes(folder: Path) -> list[float]:
    """Pass rate of the probes of all groups sampled for each batch, replaced ones included."""
    store, ledger = TrajectoryStore(folder / "store"), Ledger(folder / "state.sqlite")
    sampled = [[*ledger.flat_groups(step), *groups] for step, groups in ledger.batches().items()]
    rates = [of_probes(store.group(name) for name in names) for names in sampled]
    store.close()
    ledger.close()
    return rates


def noted_pass_rates(folder: Path) -> list[float]:
    return [line["sampled_pass_rate"] for line in read_jsonl(folder / "metrics" / "rollouts.jsonl")]


def test_the_rest_follows_where_probes_disagree(tmp_path: Path) -> None:
    index = tmp_path / "store" / "index.sqlite"
    policy = Sometimes()

    async def main() -> None:
        async with trained(tmp_path, 12, say=policy, reward=outcome) as at:
            policy.know(at.tasks[0])
            for done in (3, 9, 16):
                await interrupted(at, SETTINGS, lambda n=done: count(index, "SELECT COUNT(*) FROM trajectories") >= n)
                assert at.conserved(finished=False).difference == 0
            await at.run(SETTINGS)
            assert at.conserved().difference == 0

    asyncio.run(main())
    groups = trained_groups(tmp_path)
    assert len(groups) == 9 and {len(group) for group in groups.values()} == {2, 5}
    assert describe(list(groups.values()), 2)["pass_rate"] == pytest.approx(of_probes(groups.values()))
    assert noted_pass_rates(tmp_path) == [pytest.approx(rate) for rate in rates_of_probes(tmp_path)]


def test_with_dynamic_sampling_groups_that_agree_are_replaced(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(
        update={"steps": 1, "dynamic_sampling": DynamicSamplingSettings(enabled=True, max_share=0.9)}
    )
    policy = Sometimes()

    async def main() -> None:
        async with trained(tmp_path, 30, say=policy, reward=outcome) as at:
            policy.know(at.tasks[0])
            await at.run(settings)
            found = at.conserved()
            assert found.trained == 15 and found.dropped["flat_group"] % 2 == 0

    asyncio.run(main())
    assert {len(group) for group in trained_groups(tmp_path).values()} == {5}
    assert noted_pass_rates(tmp_path) == [pytest.approx(rate) for rate in rates_of_probes(tmp_path)]


def test_rejection_sampling_gets_no_fewer_rollouts_than_rl() -> None:
    rl = {"rollouts": {"dispatched": 41}}
    assert _samples(SETTINGS, 12, rl) == 4, "41 rollouts of 12 tasks are 3.4 each"
    assert _samples(SETTINGS, 8, rl) == 5, "replaced rollouts give no task more than a group"
    whole = SETTINGS.model_copy(update={"probes": None})
    assert _samples(whole, 12, rl) == 5
    forked = whole.model_copy(update={"algorithm": "tree", "forks": ForkSettings(count=1)})
    assert _samples(forked, 5, rl) == 9 and _samples(forked, 4, rl) == 10, "a member and its fork, of each of five"


def test_rejection_sampling_gets_the_tasks_of_rl_also_those_of_replaced_groups(tmp_path: Path) -> None:
    run, tasks = RunDirectory(tmp_path), [SimpleNamespace(name=f"t/{n}") for n in range(9)]
    ledger = Ledger(run.ledger)
    for position, name in enumerate(("t/7", "t/2", "made by the run", "t/5")):
        group = ledger.dispatch(name, position, 0, 2)
        ledger.finish(group.id, "flat" if position else "ready", fates={}, step=1 if position else None)
    ledger.close()
    assert [task.name for task in tasks_of_rl(tasks, run)] == ["t/2", "t/5", "t/7", "t/0"]  # type: ignore[arg-type]
    assert _samples(SETTINGS, 0, {"rollouts": {"dispatched": 0}}) == 5, "without steps there are no tasks"


def test_as_many_probes_as_members_are_all_at_once(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"steps": 1, "group_size": 3, "probes": 4})

    async def main() -> None:
        async with trained(tmp_path, 12, reward=outcome) as at:
            await at.run(settings)
            assert at.conserved().difference == 0

    asyncio.run(main())
    ledger = Ledger(tmp_path / "state.sqlite")
    assert [len(ledger.members(group)) for group in ledger.batches()[1]] == [3, 3, 3]
    ledger.close()
