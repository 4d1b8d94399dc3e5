"""Groups of equal rewards are replaced, counted, and within all bounds: tasks, staleness, the recipe's own limit."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from woodshed.record.jsonl import read_jsonl
from woodshed.rl.controller import may_dispatch
from woodshed.rl.ledger import Ledger, OutOfTasks
from woodshed.rl.settings import DynamicSamplingSettings, RLSettings
from woodshed.rollout.failures import RunPaused
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .trained import by_number, trained


def settings(**dynamic: object) -> RLSettings:
    return RLSettings(
        steps=2,
        groups_per_step=2,
        group_size=2,
        concurrency=2,
        dynamic_sampling=DynamicSamplingSettings(**{"enabled": True, **dynamic}),
    )


@pytest.fixture
def boxes() -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))


@pytest.mark.usefixtures("boxes")
def test_flat_groups_are_replaced_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained(tmp_path, 12, reward=by_number({0, 2, 3})) as at:
            await at.run(settings())
            found = at.conserved()
            assert found.trained == 8 and found.dropped["flat_group"] == 6 and "zero_advantage" not in found.dropped
        lines = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")
        assert sum(line["flat_groups"] for line in lines) == 3
        assert [line["zero_groups"] for line in lines] == [0, 0]
        ledger = Ledger(tmp_path / "state.sqlite")
        assert not {"g000000", "g000002", "g000003"} & {g for groups in ledger.batches().values() for g in groups}
        assert ledger.counts()["flat"] == 3 and len(ledger.dispatched()) == sum(ledger.counts().values())
        ledger.close()

    asyncio.run(main())


@pytest.mark.usefixtures("boxes")
def test_beyond_the_limit_the_batch_takes_them_or_the_run_stops(tmp_path: Path) -> None:
    every = by_number(set(range(20)))

    async def train() -> None:
        async with trained(tmp_path / "train", 20, reward=every) as at:
            await at.run(settings(max_share=0.5).model_copy(update={"steps": 1}))
            found = at.conserved()
            # Two of them are replaced, then the batch takes two as they are.
            assert found.dropped["flat_group"] == 4 and found.dropped["zero_advantage"] == 4 and found.trained == 0

    async def stop() -> None:
        async with trained(tmp_path / "stop", 20, reward=every) as at:
            with pytest.raises(RunPaused, match=r"2 groups with equal rewards .* batch 1 .*max_share = 0\.5"):
                await at.run(settings(max_share=0.5, beyond="stop"))
            assert at.conserved(finished=False).dropped == {"flat_group": 4}
            at.arena.reward = by_number({0, 1})  # nothing that is stored is graded again
            await at.run(settings(max_share=0.9, beyond="stop"))
            found = at.conserved()
            assert found.trained == 8 and found.dropped["flat_group"] >= 4

    asyncio.run(train())
    asyncio.run(stop())


@pytest.mark.usefixtures("boxes")
def test_too_few_tasks_say_how_many_were_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with trained(tmp_path, 5, reward=by_number({0, 1})) as at:
            with pytest.raises(OutOfTasks, match=r"all 5 training tasks were used .*2 flat.* of 2 batches"):
                await at.run(settings())
            assert at.conserved(finished=False).difference == 0

    asyncio.run(main())


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_capacity_rule_holds_with_replacements(tmp_path: Path, staleness: int) -> None:
    """Groups finish in the order of dispatch and are flat at random: each is trained within the bound."""
    rng, ledger, size = random.Random(staleness), Ledger(tmp_path / "s"), 3
    version, worst = 0, 0
    dispatched: dict[str, int] = {}
    while version < 30:
        while may_dispatch(ledger.capacity_used(), version, size, staleness):
            row = ledger.dispatch(f"t{ledger.next_position()}", ledger.next_position(), version, 2)
            dispatched[row.id] = version
        step = len(ledger.batches()) + 1
        for row in ledger.open_groups():
            flat = rng.random() < 0.4
            ledger.finish(row.id, "flat" if flat else "ready", step=step if flat else None)
        ready = [row.id for row in ledger.ready_groups()]
        if len(ready) >= size:
            ledger.batch(step, ready[:size])
            worst = max([worst, *(step - 1 - dispatched[group] for group in ready[:size])])
            version = step
    assert worst <= staleness
    assert ledger.counts()["flat"] > 20


def test_algorithms_that_compare_with_earlier_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"reinforce compares with earlier batches; set rl\.dynamic_sampling\.enabled"):
        RLSettings(group_size=1, algorithm="reinforce", dynamic_sampling=DynamicSamplingSettings(enabled=True))
    assert DynamicSamplingSettings(max_share=0.75).limit(12) == 36
    assert DynamicSamplingSettings(max_share=0.0).limit(12) == 0
    assert DynamicSamplingSettings(max_share=0.9).limit(2) == 18
    assert DynamicSamplingSettings(max_share=0.6).limit(12) == 18, "0.6 / 0.4 is less than 1.5 in floating point"
