"""Rounds of RL: their steps, names and places, and what a recipe may ask for."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from woodshed.evaluate.arms import AFTER, BEFORE, arms_of, split_round, title_of, titles
from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.recipe.rounds import rounds_of
from woodshed.record.run_directory import RunDirectory
from woodshed.run.plan import plan, trainer_config
from woodshed.stages.__main__ import STAGES
from woodshed.train.worker_config import WorkerConfig


def test_rounds_share_the_steps_out() -> None:
    for steps, count in ((100, 1), (100, 3), (7, 7), (0, 1)):
        rounds = rounds_of(load_recipe("laptop", [f"rl.steps={steps}", f"rl.rounds={count}"]))
        assert [each.number for each in rounds] == list(range(1, count + 1))
        assert rounds[0].start == 0 and rounds[-1].end == steps and rounds[-1].last
        assert all(left.end == right.start and not left.last for left, right in pairwise(rounds))
        assert max(each.end - each.start for each in rounds) - min(each.end - each.start for each in rounds) <= 1


def test_each_round_has_places_of_its_own() -> None:
    rounds = rounds_of(load_recipe("laptop", ["rl.rounds=3"]))
    assert rounds[0].begins_with == "sft" and rounds[-1].ends_with == "final"
    assert all(left.ends_with == right.begins_with for left, right in pairwise(rounds))
    for name in ("rl", "solved", "after"):
        assert [split_round(each.own(name)) for each in rounds] == [(name, 1), (name, 2), (name, None)]
    assert len({each.beside("s3://bucket/weights") for each in rounds}) == 3
    (only,) = rounds_of(load_recipe("laptop"))
    assert (only.own("rl"), only.beside("weights"), only.title) == ("rl", "weights", "")


def test_the_plan_has_one_round_after_the_other(tmp_path: Path) -> None:
    recipe, run = load_recipe("laptop", ["rl.rounds=2", "rl.steps=9"]), RunDirectory(tmp_path)
    stages = plan(recipe, run)
    names = [stage.name for stage in stages]
    assert names[names.index("before") :] == [
        *("before", "rl-round-1", "solved-round-1", "after-round-1"),
        *("rl", "solved", "after"),
    ]
    unseen = plan(load_recipe("laptop", ["rl.rounds=2", "evaluate.rounds=false"]), run)
    assert set(names) - {stage.name for stage in unseen} == {"after-round-1"}
    needs = {stage.name: stage.needs for stage in stages}
    assert "after-round-1" in needs["rl"] and {split_round(n)[0] for n in names if "rl" not in n} <= set(STAGES)
    configs = [
        WorkerConfig.model_validate_json(trainer_config(recipe, run, each).read_bytes()) for each in rounds_of(recipe)
    ]
    assert [(c.start, c.steps, c.policy.name) for c in configs] == [(0, 4, "sft"), (4, 9, "round-1")]
    assert configs[0].batches == configs[1].batches and configs[0].metrics == configs[1].metrics
    assert configs[0].weights != configs[1].weights and configs[0].checkpoints != configs[1].checkpoints


def test_rounds_are_arms_in_their_order() -> None:
    stages = ["solved", "after", "before", "after-round-10", "rl-round-2", "after-round-2", "tasks"]
    assert arms_of(stages) == [BEFORE, "after-round-2", "after-round-10", AFTER]
    assert [title_of(arm, titles(False)) for arm in arms_of(stages)] == ["SFT, all", "round 2", "round 10", "RL"]


def test_what_a_recipe_may_not_ask_for() -> None:
    with pytest.raises(RecipeError, match=r"learn\.solved\.after_rl = true, or rl\.rounds = 1"):
        load_recipe("laptop", ["rl.rounds=2", "learn.solved.after_rl=false"])
    with pytest.raises(RecipeError, match="a round takes a step at least"):
        load_recipe("laptop", ["rl.rounds=5", "rl.steps=4"])
