"""The arithmetic of ``benchmarks/ablations.py``: effects against repeated controls, and their intervals."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from woodshed.recipe.load import BUILTIN, dump_recipe, load_recipe
from woodshed.record.run_directory import RunDirectory, write_json
from woodshed.view.summary import EFFORT, Evaluation

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import ablations

TASKS = [f"t{number}" for number in range(40)]


def arm(rates: list[float] | np.ndarray) -> ablations.Arm:
    """A run with these pass rates on ``TASKS``; an episode takes 100 tokens, and 10 more for each task before it."""
    one = dict.fromkeys(EFFORT, 1.0)
    effort = {task: one | {"sampled_tokens": 100.0 + 10 * number} for number, task in enumerate(TASKS)}
    found = Evaluation("after", TASKS, list(map(float, rates)), [1.0] * len(TASKS), 8, {"submitted": 1}, one)
    return ablations.Arm(found, 1.0, effort, {task: number / 40 for number, task in enumerate(TASKS)}, {}, {}, 0.3)


def rates(mean: float, seed: int = 0) -> np.ndarray:
    """By task, with exactly this mean."""
    drawn = np.random.default_rng(seed).normal(0, 0.1, len(TASKS))
    return mean + drawn - drawn.mean()


def test_an_effect_is_against_the_mean_of_the_controls_that_a_seed_has() -> None:
    controls = [{0: arm(rates(0.4)), 1: arm(rates(0.5, 1))}, {0: arm(rates(0.44, 2))}]
    found = ablations.effect({0: arm(rates(0.5, 3)), 1: arm(rates(0.55, 4))}, controls)
    assert found.mean == pytest.approx((0.5 - 0.42 + 0.55 - 0.5) / 2)


def test_noise_is_the_pooled_variance_of_repeated_runs() -> None:
    found = {
        "control": {0: arm(rates(0.40)), 1: arm(rates(0.50)), 2: arm(rates(0.7))},
        "again": {0: arm(rates(0.44)), 1: arm(rates(0.50))},
        "again_2": {0: arm(rates(0.48))},
    }
    noise = ablations.run_noise([found, {"control": {0: arm(rates(0.1))}}])
    assert noise is not None and noise.freedom == 3
    assert noise.variance == pytest.approx((2 * 0.04**2 + 0) / 3)
    assert ablations.run_noise([{"control": {0: arm(rates(0.1))}}]) is None


def test_the_interval_holds_for_other_runs_and_not_only_for_other_tasks() -> None:
    """Runs of equal settings: against simulated ones, the interval over tasks alone excludes zero far too often."""
    rng = np.random.default_rng(0)
    sd, alone, whole = 0.03, 0, 0
    for _ in range(300):
        task = rates(0.5, 7)

        def run(task: np.ndarray = task) -> ablations.Arm:
            return arm(task + rng.normal(0, sd) + rng.normal(0, 0.02, len(TASKS)))

        found = {name: {seed: run() for seed in range(3)} for name in ("control", "again", "again_2", "grpo")}
        controls = [found[name] for name in ("control", "again", "again_2")]
        noise = ablations.run_noise([found])
        narrow, wide = ablations.effect(found["grpo"], controls), ablations.effect(found["grpo"], controls, noise=noise)
        assert wide.mean == pytest.approx(narrow.mean)
        alone += narrow.low <= 0 <= narrow.high
        whole += wide.low <= 0 <= wide.high
    assert alone < 0.6 * 300
    assert 0.91 * 300 <= whole <= 0.99 * 300


def test_the_interval_is_a_t_interval() -> None:
    controls = [{seed: arm(rates(0.4, seed)) for seed in range(3)}] * 3
    found = {seed: arm(rates(0.45, 10 + seed)) for seed in range(3)}
    estimate = ablations.effect(found, controls, noise=ablations.RunNoise(0.02**2, 6))
    by_task = np.mean([rates(0.45, 10 + seed) - rates(0.4, seed) for seed in range(3)], axis=0)
    error = math.sqrt(by_task.var(ddof=1) / len(TASKS) + 0.02**2 * (1 / 3 + 1 / 9))
    assert estimate.high - estimate.mean == pytest.approx(2.447 * error, rel=0.01)  # t of 6 degrees, from a table


def test_thirds_and_the_ratio_of_tokens() -> None:
    control = {0: arm(rates(0.4))}
    thirds = ablations.thirds(control)
    assert thirds["easy"] == TASKS[-13:] and thirds["hard"] == TASKS[:13]
    tokens = np.array(ablations.by_task(control, thirds["hard"], "sampled_tokens"))
    assert tokens.tolist() == [100.0 + 10 * number for number in range(13)]
    ratio = ablations.ratio_of_sums(0.5 * tokens, tokens)
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))


def test_arms_are_added_to_a_result_with_its_noise_between_runs(tmp_path: Path) -> None:
    out = tmp_path / "ablations.json"
    seeds = range(3)
    first = {
        "control": {seed: arm(rates(0.40, seed)) for seed in seeds},
        "again": {seed: arm(rates(0.44, seed)) for seed in seeds},
        "grpo": {seed: arm(rates(0.45, seed)) for seed in seeds},
    }
    ablations.report([first], 30, out)
    before = json.loads(out.read_text())
    added = {
        "control": {seed: arm(rates(0.2, seed)) for seed in seeds},
        "hints": {seed: arm(rates(0.3, seed + 10)) for seed in seeds},
    }
    ablations.report([added], 30, out, add=True)
    after = json.loads(out.read_text())
    assert after["figures"].items() >= before["figures"].items() and after["detail"].items() >= before["detail"].items()
    assert after["detail"].keys() - before["detail"].keys() == {"hints", "control of hints"}
    assert after["figures"]["hints_effect"] == pytest.approx(0.1)
    alone = after["detail"]["hints"]["interval_over_tasks_alone"]
    noise = ablations.RunNoise(before["detail"]["runs_differ_by_sd"] ** 2, 3)
    assert after["figures"]["hints_ci95_low"] == pytest.approx(
        ablations.effect(added["hints"], [added["control"]], noise=noise).low
    )
    assert after["figures"]["hints_ci95_low"] < alone["low"]
    with pytest.raises(SystemExit, match="give --steps 30"):
        ablations.report([added], 60, out, add=True)
    alone_out = tmp_path / "alone.json"
    ablations.report([added], 30, alone_out)
    ablations.report([first], 30, alone_out, add=True)  # no noise is known of the old, the new has its own
    ablations.report([added], 30, tmp_path / "new.json", add=True)


def test_an_arm_begins_after_sft_even_if_its_copy_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out = RunDirectory(tmp_path / "base"), tmp_path / "arms" / "kl-0"
    base.root.mkdir()
    base.recipe.write_text(dump_recipe(load_recipe(BUILTIN / "laptop.toml")))
    for name in ("tasks", "pretrain", "sft", "before", "rl", "solved", "after", "rejection"):
        write_json(base.root / "stages" / f"{name}.json", {})
    out.mkdir(parents=True)
    with pytest.raises(SystemExit, match="no recipe"):
        ablations.play(base.root, out, [])
    out.rmdir()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ablations, "_keep_before", killed)
        with pytest.raises(KeyboardInterrupt):
            ablations.play(base.root, out, ["rl.kl_beta=0.01"])
    assert not out.exists() and ablations.finished(out.parent) == {}
    ran: list[Path] = []
    monkeypatch.setattr(ablations, "run_recipe", lambda recipe, place: ran.append(place))
    assert ablations.play(base.root, out, ["rl.kl_beta=0.01"]) and ran == [out]
    assert {path.stem for path in (out / "stages").glob("*.json")} == {"tasks", "pretrain", "sft", "before"}
    assert load_recipe(out / "recipe.toml").rl.kl_beta == 0.01
    with pytest.raises(SystemExit, match="other settings"):
        ablations.play(base.root, out, ["rl.kl_beta=0.02"])
