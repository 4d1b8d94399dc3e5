"""A run that goes on from a finished one: what it takes over, and from which runs it cannot go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.stages.test_solved import LAPTOP, recipe, rollout, run_with, weights  # noqa: F401  (a fixture)
from woodshed.evaluate.arms import ADOPT, AFTER
from woodshed.policy.hf import load_policy
from woodshed.recipe.load import dump_recipe, first_source, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory, write_text
from woodshed.run.plan import plan
from woodshed.stages.adopt import refusal, take_over
from woodshed.stages.examples import Example, load_examples, save_examples
from woodshed.stages.solved import fine_tune_on_rl


@pytest.fixture
def earlier(tmp_path: Path, recipe: Recipe) -> RunDirectory:  # noqa: F811
    """A finished run of seed 0 that solved one rollout and learned from one demonstration of three."""
    run = run_with(tmp_path / "earlier", rollout("a", solved=True), rollout("b", solved=False))
    write_text(run.recipe, dump_recipe(recipe))
    run.demonstrations.mkdir()
    shown = [Example(np.full(9, n, np.int32), np.arange(9, dtype=np.float32).clip(0, 1)) for n in range(3)]
    save_examples(run.examples(), shown)
    save_examples(run.examples(verified=True), shown[:1])
    fine_tune_on_rl(recipe, run)
    run.finish_stage(AFTER, {})
    return run


def going_on(earlier: RunDirectory, seed: int, *settings: str) -> Recipe:
    long = ("policy.max_positions=8192", "learn.sft.max_tokens=8192")
    return load_recipe(LAPTOP, [f"policy.source={str(earlier.root)!r}", f"seed={seed}", *long, *settings])


def finished(run: RunDirectory, recipe: Recipe) -> None:  # noqa: F811
    """As if the stages after ``take_over`` had run and RL had solved one rollout."""
    write_text(run.recipe, dump_recipe(recipe))
    shutil.copytree(run.policy("sft"), run.policy("final"))
    shutil.copytree(run_with(run.root / "other", rollout("c", solved=True)).trajectories, run.trajectories)
    run.finish_stage(ADOPT, run.read_result_of(ADOPT))
    run.finish_stage(AFTER, {})


def test_policies_examples_and_solved_rollouts_are_taken_over(earlier: RunDirectory, tmp_path: Path) -> None:
    second, third = RunDirectory(tmp_path / "second"), RunDirectory(tmp_path / "third")
    take_over(going_on(earlier, 1), second)
    for theirs, ours in (("pretrain", "pretrain"), ("final", "sft")):
        old, new = weights(earlier, theirs), weights(second, ours)
        assert old.keys() == new.keys() and all((old[name] == new[name]).all() for name in old)
    learned = load_examples(second.examples(verified=True))
    assert len(learned) == 2 and len(load_examples(second.examples())) == 4
    assert learned[0].tokens.tolist() == [0] * 9 and len(learned[1].tokens) > 9 and learned[1].weights.any()
    assert second.read_result_of(ADOPT)["seeds"] == [0]

    finished(second, going_on(earlier, 1))
    take_over(going_on(second, 2), third)
    assert len(load_examples(third.examples(verified=True))) == 3, "of both runs before it"
    assert third.read_result_of(ADOPT)["seeds"] == [0, 1]
    assert first_source(going_on(second, 2)) == "scratch"


def test_no_prompt_is_trained_twice(earlier: RunDirectory, tmp_path: Path) -> None:
    assert refusal(going_on(earlier, 1), earlier) == ""
    assert "never trained twice: --set seed=1" in refusal(going_on(earlier, 0), earlier)
    assert "seed=2" in refusal(going_on(earlier, 1, "tasks.synthetic.seed=-1"), earlier), "the sum draws the tasks"
    second = RunDirectory(tmp_path / "second")
    take_over(going_on(earlier, 5), second)
    finished(second, going_on(earlier, 5))
    assert refusal(going_on(second, 1), second) == ""
    assert "--set seed=6" in refusal(going_on(second, 0), second), "the first run counts too"


def test_conversations_that_would_not_be_learned_are_refused(earlier: RunDirectory) -> None:
    given = "learn.demonstrations.conversations=['own.jsonl']"
    assert "own.jsonl would not be learned from" in refusal(going_on(earlier, 1, given), earlier)
    write_text(earlier.recipe, dump_recipe(load_recipe(earlier.recipe, [given])))
    assert refusal(going_on(earlier, 1, given), earlier) == "", "the earlier run learned from it"


def test_other_tools_are_refused(earlier: RunDirectory) -> None:
    tools = list(going_on(earlier, 1).harness.tools)
    assert refusal(going_on(earlier, 1, f"harness.tools={tools}"), earlier) == ""
    assert refusal(going_on(earlier, 1, f"harness.tools={[*tools, 'grep']}"), earlier) == "", "more tools do no harm"
    tools.remove("run_tests")
    fewer = refusal(going_on(earlier, 1, f"harness.tools={tools}"), earlier)
    assert fewer.startswith("harness.tools: run_tests of the earlier run is missing") and "policy/final" in fewer
    program = ('harness.program.command="x"', "learn.demonstrations.episodes=0")
    assert refusal(going_on(earlier, 1, *program), earlier).startswith("harness.program: only one of the two runs")


def test_another_chat_format_is_refused(earlier: RunDirectory) -> None:
    kept = load_policy(earlier.policy("final")).format.name
    assert refusal(going_on(earlier, 1, f"policy.format={kept!r}"), earlier) == ""
    assert f"the chat format {kept!r}" in refusal(going_on(earlier, 1, "policy.format='llama3'"), earlier)


def test_unfinished_runs_and_packages_are_refused(earlier: RunDirectory) -> None:
    packages = going_on(
        earlier, 1, 'tasks.main="packages"', 'harness.tools=["read_file", "edit_line", "grep", "finish"]'
    )
    assert "tasks that are drawn by seed" in refusal(packages, earlier)
    (earlier.root / "stages" / f"{AFTER}.json").unlink()
    assert f"finish it with `woodshed run {earlier.root}`" in refusal(going_on(earlier, 1), earlier)


def test_the_plan_takes_over_in_place_of_sft(earlier: RunDirectory, tmp_path: Path) -> None:
    recipe, run = going_on(earlier, 1, "evaluate.baselines=true"), RunDirectory(tmp_path / "second")  # noqa: F811
    stages = {stage.name: stage for stage in plan(recipe, run)}
    assert not stages.keys() & {"corpus", "pretrain", "convert", "demos", "sft", "other-sft"}
    assert set(stages["before"].needs) == {ADOPT, "tasks", "packages"} and "rejection" in stages
    run.finish_stage(ADOPT, {})
    shutil.rmtree(earlier.root)
    assert {stage.name for stage in plan(recipe, run)} == stages.keys(), "the earlier run may be gone by then"
