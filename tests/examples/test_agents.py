"""The examples about agents do what they say: a tool of one's own, one rollout, an agent that is not ours."""

from __future__ import annotations

import ast
import asyncio
import importlib
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.parts import HERMES, ScriptedEngine
from tests.grading import toy
from tests.programs import play, recorded_as_sampled, served
from tests.real_runs import SmokeRun
from woodshed import HarnessSettings, LayerStore, Limits, RunDirectory, Task, load_recipe, open_backend
from woodshed.harness.settings import LimitSettings
from woodshed.policy.hf import save_policy
from woodshed.policy.scratch import new_policy
from woodshed.policy.settings import PolicySettings
from woodshed.recipe.load import dump_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENT = Path(__file__).parents[1] / "program_agent.py"
LIMITS = Limits(memory=1 << 30, disk=64 << 20)


@pytest.fixture
def toy_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Task, LayerStore]:
    if not (probe := open_backend().probe()).ok:
        pytest.skip(f"no namespace sandbox here: {'; '.join(probe.reasons)}")
    monkeypatch.syspath_prepend(EXAMPLES)
    layers = LayerStore(tmp_path / "layers")
    return toy.toy_task(tmp_path / "toy", toy.pytest_layer(layers)), layers


def say(engine: ScriptedEngine, *replies: str) -> None:
    said = iter(replies)
    engine.say = lambda _: HERMES.encode(f"{next(said)}<|im_end|>", allow_special=True)


def call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def test_the_custom_tool_works_in_a_recipe_and_in_a_box(toy_task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        'name = "own"\n[harness]\noutput = { separator = "" }\n'
        'tools = ["read_file", "edit_file", "run_tests", "finish", "custom_tool:Outline"]\n'
    )
    harness = load_recipe(tmp_path / "own.toml").harness
    engine = ScriptedEngine(lambda _: [], context=1 << 16)
    say(
        engine,
        call('{"name": "outline", "arguments": {"path": "shapes/measure.py"}}'),
        call('{"name": "outline", "arguments": {"path": "shapes/__init__.py"}}'),
        call('{"name": "finish", "arguments": {}}'),
    )
    with served(engine) as url:
        done = asyncio.run(play(*toy_task, url, harness, limits=LIMITS))
    assert done.events[0].result == "4\tdef area(width, height):\n9\tdef double(value):"
    assert done.events[1].error == "no_match" and done.status == "submitted"


def test_one_rollout_of_a_new_policy(toy_task: tuple[Task, LayerStore]) -> None:
    example = importlib.import_module("rollout")
    texts = [toy.SHAPES, toy.TESTS]
    policy = new_policy(PolicySettings(d_model=32, num_layers=1, num_heads=1, num_kv_heads=1, d_ff=64), texts)
    limits = LimitSettings(turns=2, turn_tokens=8)
    harness = HarnessSettings(tools=("read_file", "finish"), system_prompt="", limits=limits)
    done = asyncio.run(example.one_rollout(toy_task[0], policy, harness, toy_task[1]))
    assert done.status in ("limit", "repeated_format_error", "submitted"), done.error
    assert done.sampled_tokens > 0 and done.rewards == {"outcome": 0.0}
    assert done.outcome is not None and set(done.outcome.tests.values()) <= {"passed", "failed"}


def test_the_rollout_takes_fewer_than_thirty_lines_of_code() -> None:
    """Besides imports and the docstring."""
    lines = 0
    for node in ast.parse((EXAMPLES / "rollout.py").read_text()).body[1:]:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            assert node.end_lineno is not None
            lines += node.end_lineno - node.lineno + 1
    assert 10 < lines < 30


def test_one_rollout_on_a_task_of_ones_own_source(
    toy_task: tuple[Task, LayerStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = RunDirectory(tmp_path / "run")
    source = importlib.import_module("custom_source")
    (task,) = source.wrong_operator(run.tasks("custom-heldout"), "heldout", 1, 0)
    own = ['tasks.main="custom_source:wrong_operator"']
    run.recipe.write_text(dump_recipe(load_recipe("smoke", own)))
    size = PolicySettings(d_model=32, num_layers=1, num_heads=1, num_kv_heads=1, d_ff=64)
    save_policy(new_policy(size, [task.instruction]), run.policy("final"))
    monkeypatch.setattr(sys, "argv", ["rollout.py", str(run.root)])
    runpy.run_path(str(EXAMPLES / "rollout.py"), run_name="__main__")
    assert "tokens sampled, rewards {'outcome': 0.0}" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_one_rollout_of_a_finished_run(smoke: SmokeRun) -> None:
    command = [sys.executable, str(EXAMPLES / "rollout.py"), str(smoke.root)]
    done = subprocess.run(command, cwd=smoke.scratch, capture_output=True, text=True, check=True)
    assert "tokens sampled, rewards {'outcome': 0.0}" in done.stdout.splitlines()[-1]


def test_the_foreign_agent_runs_by_the_recipe(toy_task: tuple[Task, LayerStore], tmp_path: Path) -> None:
    """Its command, variables and limits, with another program under its name: the tests fetch no packages."""
    harness = load_recipe(EXAMPLES / "foreign_agent.toml").harness
    assert harness.program is not None and "mini-swe-agent==2.4.6" in harness.program.packages
    folder = tmp_path / "agent/bin"
    folder.mkdir(parents=True)
    (folder / "tiny-agent").write_bytes(AGENT.read_bytes())
    checks = '[ "$1 $2 $3 $4 $5" = "-y --exit-immediately -m openai/the-policy -t" ] && [ "$MSWEA_CONFIGURED" = true ]'
    (folder / "mini").write_text(f'#!/bin/sh\n{checks} || exit 3\necho "$6" > said.txt\nexec tiny-agent\n')
    for file in folder.iterdir():
        file.chmod(0o755)
    program = harness.program.model_copy(update={"packages": (), "folder": folder.parent})
    engine = ScriptedEngine(lambda _: [], context=1 << 16)
    mend = "cat said.txt; sed -i 's/width + height/width * height/' shapes/measure.py"
    say(engine, call(f'{{"name": "bash", "arguments": {{"command": "{mend}"}}}}'), "Mended.")
    with served(engine) as url:
        settings = harness.model_copy(update={"program": program})
        done = asyncio.run(play(*toy_task, url, settings, limits=LIMITS))
    assert (done.status, done.error) == ("submitted", "")
    assert done.events[0].result.strip() == toy_task[0].instruction.strip()
    assert done.outcome is not None and done.outcome.resolved and recorded_as_sampled(engine, done)
