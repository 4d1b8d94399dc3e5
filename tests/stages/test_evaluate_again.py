"""An evaluation of a run that is continued: every held-out episode is sampled at the same temperature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from woodshed.evaluate import run as evaluations
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.failures import FAULT, INFRA
from woodshed.rollout.rollout import Arena
from woodshed.stages import evaluate as stage

SETTINGS = "evaluate={tasks=4, samples=1, dev_tasks=2, dev_samples=1, temperatures=[0.3, 1.0]}"


class Killed(BaseException):
    """Ends the first start, after two held-out episodes."""


def test_a_lost_development_sample_does_not_change_the_temperature_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, held_out = 1, list[tuple[int, float]]()

    async def episode(arena: Arena, task: Any, *, id: str, group: str, labels: Any, **_: Any) -> Trajectory:
        """At 0.3 the first development task is solved, but lost in the first start; at 1.0 it is the second."""
        at, lost = arena.temperature, False
        solved = task.name == ("dev-0" if at == 0.3 else "dev-1")
        if "-dev-" in group:
            lost = start == 1 and solved and at == 0.3
        elif start == 1 and len(held_out) == 2:
            raise Killed
        else:
            held_out.append((start, at))
        return Trajectory(
            id=id,
            task=task.name,
            group=group,
            source="eval",
            harness_hash="",
            policy="",
            status=INFRA if lost else "submitted",
            outcome=None if lost else Outcome(solved),
            labels={**labels, FAULT: "host"} if lost else labels,
        )

    @asynccontextmanager
    async def arena(*_: Any, **__: Any) -> AsyncIterator[Arena]:
        agent: Any = SimpleNamespace(harness_hash="")
        nothing: Any = None
        yield Arena(nothing, nothing, nothing, "", agent, "", max_infra_rate=1.0)

    def tasks(run: RunDirectory, family: str, split: str) -> list[Any]:
        return [SimpleNamespace(name=f"{split}-{n}") for n in range(2 if split == "dev" else 4)]

    monkeypatch.setattr(evaluations, "rollout", episode)
    monkeypatch.setattr(stage, "open_arena", arena)
    monkeypatch.setattr(stage, "load_split", tasks)
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(RunDirectory, "write_progress", lambda _, __, done, total, *___: told.append((done, total)))
    recipe, run = load_recipe("smoke", [SETTINGS]), RunDirectory(tmp_path)
    with pytest.raises(Killed):
        asyncio.run(stage._evaluate(recipe, run, "before"))
    assert told[0] == (0, 2)
    start = 2
    told.clear()
    asyncio.run(stage._evaluate(recipe, run, "before"))
    assert told[0] == (2, 4) and told[-1] == (4, 4), "the rate counts from where the evaluation goes on"
    assert held_out == [(1, 1.0), (1, 1.0), (2, 1.0), (2, 1.0)]
    result = run.read_result_of("before")
    assert result["temperature"] == 1.0 and result["dev_pass1"] == {"0.3": 0.0, "1": 1.0}, "of the task that both have"
