"""Demonstrations of tasks, one of which cannot be judged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading.heldout import EndlessError
from woodshed.grading.verify import grade
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.run.run import claim
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.stages import demonstrations
from woodshed.stages.tasks import task_folder
from woodshed.tasks.generators.synthetic import draw_synthetic, write_synthetic


def test_a_demonstration_that_cannot_be_judged_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    recipe = load_recipe("smoke", ["learn.demonstrations={episodes=3,right_edit=1,invalid_call=0,wrong_file=0}"])
    run = RunDirectory(tmp_path / "run")
    endless = ""

    async def judged(task: Task, *rest: Any, **more: Any) -> Outcome:
        if task.name == endless:
            raise EndlessError(f"{task.path}: the solution's tests do not end on other inputs")
        return await grade(task, *rest, **more)

    monkeypatch.setattr(demonstrations, "grade", judged)
    with claim(run, recipe, fresh=False):
        for spec in draw_synthetic(3, split="sft", seed=5, workers=1):
            endless = write_synthetic(spec, task_folder(run, "synthetic", "sft") / spec.name.split("/")[-1]).name
        for _ in range(2):  # and none is played again
            played = asyncio.run(demonstrations._play(recipe, run, lambda *_: 0))
            assert [(each["task"] == endless, each["resolved"]) for each in played] == [
                (False, True),
                (False, True),
                (True, False),
            ]
