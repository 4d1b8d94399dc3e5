"""SFT on solved rollouts: which rollouts and tokens it learns from, and what a run without any ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.gateway.parts import TOKENIZERS
from tests.rl.hints.episodes import Call, forked, scripted
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, load_policy, save_policy
from woodshed.recipe.load import RecipeError, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.recipe.rounds import rounds_of
from woodshed.record.run_directory import DirectoryError, RunDirectory
from woodshed.record.segment import Segment
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.run.plan import plan
from woodshed.stages.__main__ import STAGES
from woodshed.stages.solved import different, fine_tune_on_rl, solved_in_rl, weights_of

LAPTOP = Path(__file__).parents[2] / "recipes" / "laptop.toml"
EDIT = {"path": "ridge.py", "old_string": "return x\n", "new_string": "return x + 1\n"}
SCRIPT: Sequence[str | Sequence[Call]] = (
    [("read_file", {"path": "ridge.py"})],
    [("edit_file", {**EDIT, "old_string": "return y\n"})],
    [("edit_file", EDIT), ("nosuch", {})],
    [("finish", {"message": "done"})],
)


def learned_text(trajectory: Trajectory, weights: Sequence[np.ndarray], weight: float) -> str:
    """The text of the tokens with that weight."""
    tokenizer = TOKENIZERS["hermes"]
    chosen = [s.tokens[w == weight] for s, w in zip(trajectory.segments, weights, strict=True)]
    return tokenizer.decode(np.concatenate(chosen).tolist())


def test_rejected_calls_of_a_solved_rollout_are_not_learned() -> None:
    run = scripted(*SCRIPT)
    weights = weights_of(run, 0.0)
    learnt = learned_text(run, weights, 1.0)
    assert "read_file" in learnt and "return x\\n" in learnt and "done" in learnt
    assert "nosuch" in learnt, "a reply with one useful call is learned whole"
    assert "return y" not in learnt
    assert "return y" in learned_text(run, weights_of(run, 0.25), 0.25)
    whole = weights_of(run, 1.0)
    for segment, each in zip(run.segments, whole, strict=True):
        np.testing.assert_array_equal(each > 0, segment.sampled)


def test_rejected_calls_of_a_fork_are_not_learned() -> None:
    """Its first reply is repeated from the root."""
    run = forked(scripted(*SCRIPT), 1)
    learnt = learned_text(run, weights_of(run, 0.0), 1.0)
    assert "return x\\n" in learnt and "return y" not in learnt and "read_file" not in learnt


def test_all_sampled_tokens_count_where_calls_cannot_be_told_apart() -> None:
    run = replace(scripted(*SCRIPT), events=[])
    for segment, each in zip(run.segments, weights_of(run, 0.0), strict=True):
        np.testing.assert_array_equal(each > 0, segment.sampled)


def test_summaries_that_rl_leaves_untrained_are_not_learned_afterwards_either() -> None:
    """``rl.train_summaries = false``: the other replies of the same segment are learned."""
    sampled = np.array([0, 0, 1, 1, 0, 1, 1], np.bool_)
    logprobs, versions = np.zeros(7, np.float32), np.where(sampled, 0, -1).astype(np.int32)
    segment = Segment(np.arange(7, dtype=np.int32), sampled, logprobs, versions)
    run = Trajectory("t", "t", "g", "train", "", "", "submitted", segments=[segment], summaries=[(0, 5, 7)])
    (whole,), (control,) = different([run], 7, 0.0), different([run], 7, 0.0, summaries=False)
    assert (whole.weights > 0).tolist() == sampled.tolist()
    assert control.weights.tolist() == [0, 0, 1, 1, 0, 0, 0]


def test_equal_rollouts_count_once() -> None:
    run = scripted(*SCRIPT)
    other = scripted(SCRIPT[0], SCRIPT[3], name="other")
    assert len(different([run, replace(run, id="again"), other], 10_000, 0.0)) == len({run.id, other.id}) == 2
    longest = len(run.segments[0])
    (cut,) = different([run], longest - 1, 0.0)
    assert len(cut.tokens) == len(cut.weights) == longest - 1


@pytest.fixture
def recipe() -> Recipe:
    monitors = "rl.monitors={test_tampering='quarantine', special_casing='fail'}"
    return load_recipe(
        LAPTOP, ["policy.max_positions=8192", "learn.sft={max_tokens=8192, matrix_lr=0.005, verified=true}", monitors]
    )


def run_with(folder: Path, *trajectories: Trajectory) -> RunDirectory:
    """A run whose RL is over: random policies, and these training rollouts."""
    run = RunDirectory(folder)
    tokenizer = TOKENIZERS["hermes"]
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=8,
        d_ff=24,
        max_positions=8192,
    )
    for seed, name in enumerate(("pretrain", "rl")):
        save_policy(Policy(Decoder(config, seed=seed), tokenizer, get_format("hermes"), config), run.policy(name))
    store = TrajectoryStore(run.trajectories)
    for trajectory in trajectories:
        store.add(trajectory)
    store.close()
    return run


def rollout(id: str, *, solved: bool, **changes: object) -> Trajectory:
    script = SCRIPT if solved else SCRIPT[:2] + SCRIPT[3:]
    return replace(
        scripted(*script, name=id),
        id=id,
        group=f"group-{id}",
        source="train",
        outcome=Outcome(resolved=solved),
        **changes,  # type: ignore[arg-type]
    )


def weights(run: RunDirectory, name: str) -> dict[str, np.ndarray]:
    return load_file(run.policy(name) / "model.safetensors")


def test_the_result_is_learned_from_what_rl_solved(tmp_path: Path, recipe: Recipe) -> None:
    run = run_with(tmp_path, rollout("a", solved=True), rollout("b", solved=False))
    fine_tune_on_rl(recipe, run)
    assert run.read_result_of("solved")["note"].startswith("1 examples")
    final, start, rl = (weights(run, name) for name in ("final", "pretrain", "rl"))
    assert any((final[name] != start[name]).any() for name in start), "nothing was learned"
    distance = {
        name: sum(float(np.abs(final[k] - other[k]).sum()) for k in final)
        for name, other in (("pretrain", start), ("rl", rl))
    }
    assert distance["pretrain"] < distance["rl"], "it starts from the policy before SFT"


def test_only_training_rollouts_are_learned(tmp_path: Path, recipe: Recipe) -> None:
    """Held-out tasks are solved in evaluations of the same run."""
    run = RunDirectory(tmp_path)
    store = TrajectoryStore(run.trajectories)
    held_out = scripted(*SCRIPT[:1], *SCRIPT[2:], name="b")
    store.add(rollout("a", solved=True))
    store.add(replace(held_out, id="b", group="eval", source="eval", outcome=Outcome(resolved=True)))
    store.close()
    (learned,) = solved_in_rl(recipe, run)
    (segment,) = rollout("a", solved=True).segments
    assert learned.tokens.tolist() == segment.tokens.tolist()


def test_demonstrations_that_are_gone_are_missed(tmp_path: Path, recipe: Recipe) -> None:
    run = run_with(tmp_path, rollout("a", solved=True))
    run.finish_stage("demos", {})
    with pytest.raises(DirectoryError, match=r"verified\.npz is missing"):
        fine_tune_on_rl(recipe, run)


def test_a_round_ends_with_the_policy_that_the_next_begins_with(tmp_path: Path) -> None:
    recipe = load_recipe(LAPTOP, ["policy.max_positions=8192", "learn.sft.max_tokens=8192", "rl.rounds=4"])
    run = run_with(tmp_path, rollout("a", solved=True), rollout("b", solved=False))
    fine_tune_on_rl(recipe, run, 2)
    assert run.read_result_of("solved-round-2")["note"].startswith("1 examples")
    assert load_policy(run.policy("round-2")).version == 50, "steps are counted on"
    assert not run.policy("final").exists() and rounds_of(recipe)[2].begins_with == "round-2"


def test_where_nothing_was_solved_in_good_faith_rl_has_the_last_word(tmp_path: Path, recipe: Recipe) -> None:
    hacks = [rollout(name, solved=True, findings=[{"monitor": name}]) for name in ("test_tampering", "special_casing")]
    run = run_with(tmp_path, rollout("b", solved=False), *hacks)
    fine_tune_on_rl(recipe, run)
    final, rl = weights(run, "final"), weights(run, "rl")
    assert all((final[name] == rl[name]).all() for name in rl)
    assert "nothing" in run.read_result_of("solved")["note"]


def test_the_plan_evaluates_the_result_and_rl_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    stages = {stage.name: stage for stage in plan(load_recipe(LAPTOP, ["evaluate.baselines=true"]), run)}
    assert "solved" in stages["after"].needs and stages["solved"].needs == ("rl",)
    assert {name for name in stages if name != "rl"} <= set(STAGES)
    without = ["learn.solved.after_rl=false", "evaluate.baselines=true"]
    names = {stage.name for stage in plan(load_recipe(LAPTOP, without), run)}
    assert set(stages) - names == {"solved", "rl-evaluation"}


def test_a_head_that_drafts_would_be_lost() -> None:
    with pytest.raises(RecipeError, match=r"learn\.solved\.after_rl makes another one"):
        load_recipe(LAPTOP, ["learn.mtp.steps=10"])
