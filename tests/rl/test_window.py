"""The window at consumption: quick groups overtake a slow one only so far, and slow groups are trained too."""

from __future__ import annotations

import asyncio
import heapq
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from woodshed.record.jsonl import read_jsonl
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rl.controller import may_dispatch
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import DynamicSamplingSettings, RLSettings
from woodshed.sandbox.backends.namespace.backend import probe_namespace

from .test_conservation import interrupted
from .trained import by_number, trained

FIFO, GREEDY = 1, 1_000_000
TRAINER = -1
"""Place of the trainer among simultaneous events of the simulation: first."""


@dataclass
class Simulated:
    """Result of a simulated run. ``quick``, ``slow``: groups trained; ``stale``: groups dropped. ``age``: largest
    number of versions between dispatch and training of a group; ``idle``: share of the time that the trainer waits."""

    seconds: float
    idle: float
    quick: int
    slow: int
    stale: int
    age: int

    @property
    def slow_share(self) -> float:
        return self.slow / (self.slow + self.quick)


def simulate(folder: Path, settings: RLSettings, train_seconds: float, seed: int = 0) -> Simulated:
    """Run the ledger and the capacity rule over a clock that jumps from event to event.

    A group takes about 10 seconds, 15 % of the groups take about 60; slots for rollouts are not limited.
    """
    rng, ledger = random.Random(seed), Ledger(folder / "s")
    now = idle = free_since = 0.0
    version, training = 0, False
    slow: dict[str, bool] = {}
    born: dict[str, int] = {}
    trained: list[str] = []
    age = 0
    events: list[tuple[float, int, str]] = []
    while version < settings.steps:
        while ledger.capacity_used() < settings.steps * settings.groups_per_step and may_dispatch(
            ledger.capacity_used(), version, settings.groups_per_step, settings.max_staleness
        ):
            number = ledger.next_position()
            row = ledger.dispatch(f"t{number}", number, version, 1)
            slow[row.id], born[row.id] = rng.random() < 0.15, version
            seconds = (60 if slow[row.id] else 10) * rng.uniform(0.8, 1.2)
            heapq.heappush(events, (now + seconds, number, row.id))
        step = ledger.newest_step() + 1
        for row in ledger.ready_groups():
            if version - born[row.id] > settings.max_token_age:
                ledger.finish(row.id, "stale", step=step)
        chosen = [row.id for row in ledger.ready_groups(settings.batch_window)][: settings.groups_per_step]
        if len(chosen) == settings.groups_per_step and step <= settings.steps:
            ledger.batch(step, chosen)
            trained += chosen
            age = max([age, *(step - 1 - born[id] for id in chosen)])
            continue
        if not training and ledger.newest_step() > version:
            training, idle = True, idle + now - free_since
            heapq.heappush(events, (now + train_seconds, TRAINER, ""))
        now, place, id = heapq.heappop(events)  # raises IndexError if the run is stuck
        if place == TRAINER:
            version, training, free_since = version + 1, False, now
        else:
            ledger.finish(id, "ready")
    stale = ledger.counts().get("stale", 0)
    ledger.close()
    of_slow = sum(slow[id] for id in trained)
    return Simulated(now, idle / now, len(trained) - of_slow, of_slow, stale, age)


def run_settings(window: int | None, **changed: int) -> RLSettings:
    values = {"steps": 60, "groups_per_step": 4, "max_staleness": 1, "max_token_age": 4, **changed}
    return RLSettings(window=window, **values)  # type: ignore[arg-type]


def test_slow_groups_are_trained_at_little_cost(tmp_path: Path) -> None:
    """With a trainer that is quick beside the rollouts, greedy consumption drops more than a third of the slow ones."""
    found = {}
    for name, window in {"fifo": FIFO, "default": None, "greedy": GREEDY}.items():
        found[name] = simulate(tmp_path / name, run_settings(window), train_seconds=0.01)
    greedy, default, fifo = found["greedy"], found["default"], found["fifo"]
    assert greedy.stale > (greedy.stale + greedy.slow) / 3 and greedy.slow_share < 0.75 * default.slow_share
    assert default.stale == fifo.stale == 0 and default.slow_share > 0.14
    assert greedy.seconds < default.seconds < 1.2 * greedy.seconds, "waiting for slow groups has its price"
    assert fifo.seconds > 1.5 * default.seconds and fifo.idle > default.idle
    assert (default.slow, greedy.slow, greedy.stale) == (39, 27, 16), "as docs/architecture.md says"
    greedy, default = (
        simulate(tmp_path / f"busy-{window}", run_settings(window), train_seconds=10.0) for window in (GREEDY, None)
    )
    assert greedy == default, "where the trainer is the slower, nothing is lost either way"
    assert (fifo.age, default.age) == (1, 4)


@pytest.mark.parametrize("changed", [{}, {"groups_per_step": 1}, {"max_staleness": 0}, {"max_staleness": 4}])
def test_nothing_becomes_stale_in_the_default_window(tmp_path: Path, changed: dict[str, int]) -> None:
    """Whatever the trainer's speed; and a run never gets stuck, with any window."""
    for number, seconds in enumerate((0.01, 10.0)):
        found = simulate(tmp_path / str(number), run_settings(None, steps=30, **changed), train_seconds=seconds)
        assert found.stale == 0 and found.age <= 4
    strict = simulate(tmp_path / "strict", run_settings(FIFO, steps=30, **changed), train_seconds=0.01)
    assert strict.stale == 0 and strict.age <= run_settings(FIFO, **changed).max_staleness


def test_one_more_group_in_the_window_can_make_a_group_too_old() -> None:
    """The worst case of ``RLSettings.batch_window``: a slow group that was dispatched last at version 0."""
    for groups, staleness in ((4, 1), (1, 2), (12, 4)):
        settings = run_settings(None, groups_per_step=groups, max_staleness=staleness)
        before = (staleness + 1) * groups - 1
        overtaken = [(before + window - 1) // groups for window in (settings.batch_window, settings.batch_window + 1)]
        assert overtaken == [settings.max_token_age, settings.max_token_age + 1]
    assert run_settings(7).batch_window == 7


class Held:
    """Rewards of ``by_number`` in which the group 0 ends only after the group ``until`` does. If one more rollout than
    the members of group 0 may be in flight, the others run one at a time, in order."""

    def __init__(self, until: int, flat: set[int]) -> None:
        self.until, self.pay, self.released = until, by_number(flat), threading.Event()

    def __call__(self, task: Task, trajectory: Trajectory, outcome: Outcome) -> dict[str, float]:
        group = int(trajectory.id.split("-")[0][1:])
        if group == 0:
            assert self.released.wait(60)
        elif group == self.until:
            self.released.set()
        return self.pay(task, trajectory, outcome)


def batches_of(folder: Path) -> dict[int, list[int]]:
    ledger = Ledger(folder / "state.sqlite")
    found = {step: [int(group[1:]) for group in groups] for step, groups in ledger.batches().items()}
    ledger.close()
    return found


def played(folder: Path, settings: RLSettings, held: Held, *, killed: bool = False) -> None:
    """Run a controller to its end. ``killed``: another one was killed after its first batch."""
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))

    async def main() -> None:
        async with trained(folder, 14, reward=held) as at:
            if killed:
                await interrupted(at, settings, lambda: bool(at.trained))
            await at.run(settings)
            assert at.conserved().difference == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("window", "order"),
    [(FIFO, [0, 1, 2]), (2, [1, 0, 2]), (3, [1, 2, 0]), (GREEDY, [1, 2, 3])],
)
@pytest.mark.parametrize("killed", [False, True])
def test_the_controller_waits_for_a_slow_group_at_the_end_of_the_window(
    tmp_path: Path, window: int, order: list[int], killed: bool
) -> None:
    # With plain FIFO the first five batches are formed at once; the run must not end before it can be killed.
    settings = RLSettings(
        steps=9, groups_per_step=1, group_size=2, concurrency=3, max_staleness=4, max_token_age=9, window=window
    )
    played(tmp_path, settings, Held(4, set()), killed=killed)
    assert [group for groups in batches_of(tmp_path).values() for group in groups][:3] == order


def test_groups_that_wait_count_for_dynamic_sampling(tmp_path: Path) -> None:
    """Half of the groups may be replaced. When the third flat one ends, three others wait behind the slow group."""
    settings = RLSettings(
        steps=3,
        groups_per_step=2,
        group_size=2,
        concurrency=3,
        max_staleness=2,
        window=FIFO,
        dynamic_sampling=DynamicSamplingSettings(enabled=True, max_share=0.5),
    )
    played(tmp_path, settings, Held(8, {1, 2, 6}))
    assert batches_of(tmp_path) == {1: [0, 3], 2: [4, 5], 3: [7, 8]}
    lines = read_jsonl(tmp_path / "metrics" / "rollouts.jsonl")
    assert [line["flat_groups"] for line in lines] == [3, 0, 0] and not any(line["zero_groups"] for line in lines)
