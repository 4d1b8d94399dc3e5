"""An episode whose process died goes on from the gateway's record, in a new box."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway.parts import HERMES, ScriptedEngine
from grading import toy
from rollouts import Call, arena, call_texts

from woodshed.gateway.journal import Journal
from woodshed.harness.settings import HarnessSettings, LimitSettings
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.failures import RESUMED
from woodshed.rollout.rollout import rollout
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore

FILE = "shapes/measure.py"
CALLS: Sequence[Call] = (
    ("run_tests", {}),
    ("read_file", {"path": FILE}),
    ("edit_file", {"path": FILE, "old_string": "width + height", "new_string": "width * height"}),
    ("run_tests", {}),
    ("finish", {}),
)
HARNESS = HarnessSettings(
    tools=("read_file", "edit_file", "run_tests", "finish"),
    limits=LimitSettings(turns=8, turn_tokens=300, sampled_tokens=2000, wall_seconds=300.0),
)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, LayerStore]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    root = tmp_path_factory.mktemp("resume")
    layers = LayerStore(root / "layers")
    return toy.toy_task(root / "toy", toy.pytest_layer(layers)), layers


class Engine(ScriptedEngine):
    """Makes the calls in turn. With ``stall``, reply number ``stall`` (from 0) never ends and sets ``reached``."""

    def __init__(self, calls: Sequence[Call], stall: int | None = None) -> None:
        said = iter(call_texts(calls))
        super().__init__(lambda _: HERMES.encode(next(said), allow_special=True), context=1 << 16)
        self.stall, self.reached = stall, asyncio.Event()

    async def generate(self, *args: Any, **options: Any) -> Any:
        if len(self.calls) == self.stall:
            self.reached.set()
            await asyncio.Event().wait()
        return await super().generate(*args, **options)


async def begin(task: tuple[Task, LayerStore], replies: int, folder: Path) -> None:
    """Run an episode that is killed while reply number ``replies`` is sampled."""
    engine = Engine(CALLS, stall=replies)
    async with arena(engine, task[1], HARNESS, attempts=1, journal=Journal(folder)) as at:
        running = asyncio.create_task(rollout(at, task[0], id="r", group="g", source="train"))
        await engine.reached.wait()
        running.cancel()
        await asyncio.wait([running])


async def go_on(
    task: tuple[Task, LayerStore], calls: Sequence[Call], folder: Path, harness: HarnessSettings = HARNESS
) -> tuple[Trajectory, int]:
    """The trajectory, and how many replies were sampled for it now."""
    engine = Engine(calls)
    async with arena(engine, task[1], harness, attempts=1, journal=Journal(folder)) as at:
        made = await rollout(at, task[0], id="r", group="g", source="train", resume=True)
        return made, len(engine.calls)


def same(one: Trajectory, other: Trajectory) -> bool:
    """Compare sampled tokens and calls. Contexts are not compared: test runs print durations."""
    (a,), (b,) = one.segments, other.segments
    sampled = np.array_equal(a.tokens[a.sampled], b.tokens[b.sampled])
    return sampled and [(e.name, e.error) for e in one.events] == [(e.name, e.error) for e in other.events]


def solved(made: Trajectory) -> bool:
    return made.outcome is not None and made.outcome.resolved


@pytest.mark.parametrize("replies", [0, 1, 3, 4])
def test_it_goes_on_where_it_was(task: tuple[Task, LayerStore], tmp_path: Path, replies: int) -> None:
    whole, count = asyncio.run(go_on(task, CALLS, tmp_path / "whole"))
    assert count == len(CALLS) and RESUMED not in whole.labels and solved(whole)
    asyncio.run(begin(task, replies, tmp_path / "killed"))
    made, sampled = asyncio.run(go_on(task, CALLS[replies:], tmp_path / "killed"))
    assert sampled == len(CALLS) - replies and made.labels[RESUMED] == "1"
    assert same(made, whole) and made.status == "submitted" and solved(made)
    assert made.effort.turns == len(CALLS) and made.effort.sampled_tokens == whole.effort.sampled_tokens


def test_it_can_be_killed_again_and_again(task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    async def killed_at(number: int) -> None:
        engine = Engine(CALLS[number - 1 :], stall=1)
        async with arena(engine, task[1], HARNESS, attempts=1, journal=Journal(tmp_path)) as at:
            running = asyncio.create_task(rollout(at, task[0], id="r", group="g", source="train", resume=True))
            await engine.reached.wait()
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(begin(task, 1, tmp_path))
    for number in (2, 3):
        asyncio.run(killed_at(number))
    made, sampled = asyncio.run(go_on(task, CALLS[3:], tmp_path))
    assert sampled == 2 and len(made.segments) == 1 and solved(made)


def test_what_goes_another_way_is_run_from_the_beginning(task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    """The file that the agent reads is another one in the new box."""
    asyncio.run(begin(task, 3, tmp_path / "journal"))
    shapes = toy.SHAPES.replace("Shapes, measured", "Shapes")
    other = toy.toy_task(tmp_path / "other", toy.pytest_layer(task[1]), shapes=shapes)
    made, sampled = asyncio.run(go_on((other, task[1]), CALLS, tmp_path / "journal"))
    assert sampled == len(CALLS) and RESUMED not in made.labels
    assert len(made.segments) == 1 and solved(made)


def test_an_episode_that_ends_before_its_record_is_run_from_the_beginning(
    task: tuple[Task, LayerStore], tmp_path: Path
) -> None:
    """Replies that nobody has acted upon now must not be trained with this episode's reward."""
    asyncio.run(begin(task, 4, tmp_path))
    fewer = HARNESS.model_copy(update={"limits": HARNESS.limits.model_copy(update={"turns": 2})})
    made, sampled = asyncio.run(go_on(task, CALLS, tmp_path, fewer))
    assert sampled == 2 and made.status == "limit" and RESUMED not in made.labels
    assert len(made.replies) == 2 and int(made.segments[0].sampled.sum()) == made.effort.sampled_tokens


def test_what_nobody_has_open_is_run_as_usual(task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    made, sampled = asyncio.run(go_on(task, CALLS, tmp_path))
    assert sampled == len(CALLS) and RESUMED not in made.labels and solved(made)
