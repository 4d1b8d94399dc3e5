"""Rollouts at a time: the rule, the waits that it goes by, and a controller that follows it and stays fresh enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.record.jsonl import read_jsonl
from woodshed.rl.concurrency import AdaptiveSettings, Slots, WaitMeter, Waits, adapt
from woodshed.rl.settings import RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .trained import Trained, by_number, trained

ADAPTIVE = AdaptiveSettings(enabled=True, least=4, trainer_wait=0.1, more=3, batch_wait=0.5, fewer=0.5)


def waits(*, batch: float = 0.0, trainer: float = 0.0) -> Waits:
    return Waits(2, 10.0, batch=batch, trainer=trainer)


def test_more_where_the_trainer_waits_and_fewer_where_batches_do() -> None:
    def after(limit: int, found: Waits, *, full: bool = True) -> int:
        return adapt(limit, found, ADAPTIVE, full=full, most=20)

    assert after(10, waits(trainer=1.1)) == 13 and after(19, waits(trainer=9.0)) == 20
    assert after(10, waits(trainer=9.0), full=False) == 10, "something else holds the rollouts back"
    assert after(10, waits(batch=5.1)) == 5 and after(5, waits(batch=30.0)) == 4
    assert after(10, waits(trainer=1.0)) == after(10, waits(batch=5.0)) == after(10, waits()) == 10, "within bounds"


seconds = st.floats(0, 1e6)


@given(st.integers(4, 20), seconds, seconds, seconds, st.booleans())
def test_it_never_leaves_its_bounds(limit: int, took: float, batch: float, trainer: float, full: bool) -> None:
    found = adapt(limit, Waits(2, took, batch, trainer), ADAPTIVE, full=full, most=20)
    assert 4 <= found <= 20
    assert found <= limit or (full and trainer > 0)
    assert found >= limit or batch > 0


@pytest.mark.parametrize(("needed", "start"), [(12, 20), (12, 4), (5, 20), (20, 4)])
def test_it_settles_where_neither_waits_for_long(needed: int, start: int) -> None:
    """Sampling a batch takes ``80 / limit`` seconds and training it ``80 / needed``, side by side."""
    limit, seen = start, []
    for _ in range(60):
        sampling, training = 80 / limit, 80 / needed
        took = max(sampling, training)
        limit = adapt(limit, Waits(2, took, took - sampling, took - training), ADAPTIVE, full=True, most=20)
        seen.append(limit)
    assert len(set(seen[20:])) == 1 and 0.9 * needed <= seen[-1] <= 2 * needed


def test_who_waited() -> None:
    now = [0.0]

    def at(moment: float) -> WaitMeter:
        now[0] = moment
        return meter

    meter = WaitMeter(lambda: now[0])
    meter.published(0)
    at(5).formed(1)
    assert meter.take() == [], "the first has filled the pipeline"
    at(7).formed(2)
    assert meter.take() == [], "it waits"
    at(15).published(1)
    assert meter.take() == [Waits(2, seconds=10.0, batch=8.0, trainer=0.0)]
    at(20).published(2)
    at(24).formed(3)
    assert meter.take() == [Waits(3, seconds=9.0, batch=0.0, trainer=4.0)]
    at(25).formed(4)
    at(26).formed(5)
    at(34).published(4)  # the chain has skipped version 3
    assert meter.take() == [Waits(4, 10.0, 9.0, 0.0), Waits(5, 0.0, 8.0, 0.0)]
    again = WaitMeter(lambda: now[0])  # as after a restart, between versions 4 and 5
    again.published(4)
    again.formed(5)
    assert again.take() == []
    now[0] = 40.0
    again.published(5)
    again.formed(6)
    assert again.take() == [Waits(6, 6.0, 0.0, 0.0)]


def test_a_limit_holds_while_it_changes() -> None:
    async def main() -> None:
        now = [0.0]
        slots, holding = Slots(4, lambda: now[0]), asyncio.Event()
        held: list[int] = []

        async def hold() -> None:
            async with slots:
                held.append(slots.held)
                await holding.wait()

        async def settle() -> None:
            for _ in range(20):
                await asyncio.sleep(0)

        running = [asyncio.create_task(hold()) for _ in range(9)]
        await settle()
        assert slots.held == 4 and slots.take_full() and slots.take_full(), "they still are in use"
        now[0] = 1.0
        await slots.set_limit(2)
        now[0] = 2.0
        assert slots.take_share() == pytest.approx((4 + 4) / (4 + 2))
        now[0] = 3.0
        assert slots.take_share() == pytest.approx(4 / 2), "since the last call"
        assert slots.held == 4, "those that run are not stopped"
        await slots.set_limit(6)
        await settle()
        assert slots.held == 6 and max(held) == 6
        running[6].cancel()  # one that waits
        await settle()
        await slots.set_limit(2)
        holding.set()
        await asyncio.gather(*running, return_exceptions=True)
        assert slots.held == 0 and len(held) == 8
        now[0] = 4.0
        slots.take_full()
        assert not slots.take_full()
        slots.take_share()
        await slots.set_limit(1)
        async with slots:
            now[0] = 6.0
            await slots.set_limit(3)
            async with slots:
                now[0] = 7.0
        now[0] = 8.0
        assert slots.take_full(), "it was reached before it was raised"
        assert slots.take_share() == pytest.approx((2 * 1 + 1 * 2 + 1 * 0) / (2 * 1 + 1 * 3 + 1 * 3))

    asyncio.run(main())


def test_bounds_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"lower rl\.adaptive\.least or raise rl\.concurrency"):
        RLSettings(concurrency=4, adaptive=AdaptiveSettings(enabled=True, least=5))


class Moody(Trained):
    """A trainer that takes a batch only when the next one waits too, up to version 4, and then takes each at once."""

    def head(self) -> int:
        step = len(self.trained) + 1
        waits = (self.folder / "batches" / f"step-{step + 1:06d}.safetensors").exists()
        return super().head() if waits or step > 4 else len(self.trained)


def test_a_controller_adapts_and_keeps_to_the_staleness_bound(tmp_path: Path) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    settings = RLSettings(
        steps=10,
        groups_per_step=1,
        group_size=4,
        concurrency=8,
        attempts=1,
        max_staleness=1,
        adaptive=AdaptiveSettings(enabled=True, least=2, trainer_wait=0, more=1, batch_wait=0, fewer=0.5),
    )

    async def main() -> None:
        async with trained(tmp_path, 12, reward=by_number(set())) as at:
            await Moody(at.folder, at.arena, at.tasks).run(settings)
            assert at.conserved().trained == 40

    asyncio.run(main())
    lines = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")
    limits = [line["concurrency"] for line in lines]
    assert limits[0] == 8 and min(limits) == 2 and all(2 <= limit <= 8 for limit in limits)
    assert max(limits[limits.index(2) :]) > 2, "it grew again"
    assert max(line["staleness"] for line in lines) <= settings.max_staleness
    known = [line["waits"] for line in lines if line["waits"]]
    assert len(known) >= 7 and all(found["batch"] * found["trainer"] == 0 for found in known)
    assert any(found["batch"] > 0 for found in known) and any(found["trainer"] > 0 for found in known)
