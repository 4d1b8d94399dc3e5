"""Demonstrations of tasks, one of which cannot be judged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.parts import TOKENIZERS
from woodshed.grading.heldout import EndlessError
from woodshed.grading.verify import grade
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome
from woodshed.run.run import claim
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.stages import demonstrations
from woodshed.stages.examples import load_examples
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


def test_only_solved_and_tested_demonstrations_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("smoke", ["learn.demonstrations={episodes=4,hinted=0}", "policy.format='hermes'"])
    run = RunDirectory(tmp_path / "run")
    run.corpus.mkdir(parents=True)
    TOKENIZERS["hermes"].save(run.corpus / "tokenizer.json")

    def conversation(number: int, *, resolved: bool, tested: bool) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [{"role": "user", "content": f"task {number}"}]
        for name, result in (("edit_line", "ok"), *((("run_tests", "PASS: 1 test"),) if tested else ())):
            call = {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": name, "content": result})
        weights = [1.0] * (1 + tested)
        return {"number": number, "resolved": resolved, "messages": messages, "weights": weights, "events": []}

    kinds = [(True, False), (True, True), (False, True), (False, False)]

    async def played(*_: object) -> list[dict[str, Any]]:
        return [conversation(n, resolved=solved, tested=tested) for n, (solved, tested) in enumerate(kinds)]

    monkeypatch.setattr(demonstrations, "_play", played)
    demonstrations.demonstrate(recipe, run)
    every, (verified,) = load_examples(run.examples()), load_examples(run.examples(verified=True))
    assert len(every) == 4 and verified.tokens.tolist() == every[1].tokens.tolist()
    assert run.read_result_of("demos")["verified"] == 1
