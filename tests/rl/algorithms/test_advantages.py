"""Token weights of every algorithm, compared with definitions in plain Python, and properties that all share."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms import load_algorithm, names
from woodshed.rl.batching import History, build_batch

from .test_batching import trajectory

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


def group_of(rewards_G: Sequence[float]) -> list[Trajectory]:
    """Rollouts of several lengths and segments."""
    shapes = (["pss"], ["ppsoss", "ps"], ["ps", "pss", "psss"], ["pssss"])
    return [trajectory(f"r{i}", reward, shapes[i % 4]) for i, reward in enumerate(rewards_G)]


def weights_of(name: str, rewards_G: Sequence[float], budget: int = 50, **options: bool | float) -> list[float]:
    """The one weight that all sampled tokens of each rollout have."""
    group = group_of(rewards_G)
    algorithm = load_algorithm(name, budget=budget, options=options)
    annotated = algorithm.annotate(group)
    found = []
    for made, segments in zip(group, annotated, strict=True):
        assert {part for weights in segments for part in weights} == set(algorithm.parts)
        every = np.concatenate([weights[algorithm.parts[0]] for weights in segments])
        sampled = np.concatenate([segment.sampled for segment in made.segments])
        assert not every[~sampled].any() and len(set(every[sampled].tolist())) == 1
        found.append(float(every[sampled][0]))
    return found


GROUPED = [name for name in names() if name not in ("reinforce", "raft")]


@pytest.mark.parametrize("name", GROUPED)
@given(r=rewards, shift=st.floats(-100, 100))
def test_blind_to_a_constant(name: str, r: list[float], shift: float) -> None:
    np.testing.assert_allclose(weights_of(name, [x + shift for x in r]), weights_of(name, r), rtol=1e-3, atol=1e-3)


@given(r=rewards, scale=st.floats(0.1, 10))
def test_default_is_not_standardised_and_sums_to_zero(r: list[float], scale: float) -> None:
    found = weights_of("mean_baseline", r)
    np.testing.assert_allclose(found, [x - statistics.fmean(r) for x in r], atol=1e-5)
    np.testing.assert_allclose(
        weights_of("mean_baseline", [scale * x for x in r]), np.multiply(scale, found), atol=1e-4
    )
    assert abs(sum(found)) < 1e-4


@given(r=rewards)
def test_leave_one_out_against_its_definition(r: list[float]) -> None:
    expected = [r[i] - np.delete(r, i).mean() for i in range(len(r))]
    np.testing.assert_allclose(weights_of("leave_one_out", r), expected, rtol=1e-5, atol=1e-5)


@given(r=rewards, above=st.floats(-10, 10))
def test_raft_trains_what_succeeded(r: list[float], above: float) -> None:
    assert weights_of("raft", r, above=above) == [1.0 if reward > above else 0.0 for reward in r]


def test_raft_trains_a_group_that_all_solved_and_none_that_nobody_did() -> None:
    raft = load_algorithm("raft", budget=50)
    for reward, trained in ((1.0, 4), (0.0, 0)):
        about = {"step": 1, "batch_id": "b", "generation_budget": 50}
        batch, stats = build_batch([group_of([reward] * 4)], raft, **about)
        assert (stats.trained, stats.zero_advantage) == (trained, 4 - trained)
        assert batch.denominators == {"ce": 200.0}


@pytest.mark.parametrize("name", ["grpo", "gspo"])
@given(r=rewards, std=st.booleans(), length=st.booleans())
def test_grpo_against_its_definition(name: str, r: list[float], std: bool, length: bool) -> None:
    """Times 1 / (rollouts x budget) of the batch a weight becomes A / (G |o|), as published."""
    lengths = [sum(int(s.sampled.sum()) for s in made.segments) for made in group_of(r)]
    expected = []
    for reward, size in zip(r, lengths):
        advantage = (reward - statistics.fmean(r)) / (statistics.stdev(r) + 1e-4 if std else 1)
        expected.append(advantage * (50 / size if length else 1))
    np.testing.assert_allclose(weights_of(name, r, std=std, length=length), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", GROUPED)
def test_equal_rewards_give_exactly_zero(name: str) -> None:
    assert not any(weights_of(name, [0.1] * 7))


def test_an_empty_rollout_weighs_nothing() -> None:
    group = [trajectory("a", 1.0, ["ppp", "s"]), trajectory("b", 0.0, ["ps"])]
    for name in names():
        nothing = load_algorithm(name, budget=9).annotate(group)[0]
        assert not any(weight.any() for weights in nothing for weight in weights.values())


def test_an_algorithm_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples")
    best = "custom_algorithm:Best"
    ours = load_algorithm(best, budget=10, options={"above": 0.5})
    group = group_of([0.0, 1.0])
    assert [weights["ce"].sum() for weights in ours.annotate(group)[1]] == [3, 1]
    assert not load_algorithm(best, budget=10, options={"above": 1.0}).annotate(group)[1][0]["ce"].any()


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "ppo",
            {},
            "unknown algorithm 'ppo'; known: mean_baseline, leave_one_out, grpo, gspo, reinforce, raft, tree, or",
        ),
        ("grpo", {"lenght": True}, "grpo has no option 'lenght'; known: std, length"),
        ("mean_baseline", {"std": True}, "mean_baseline has no option 'std'; it takes none"),
        ("grpo", {"std": "no"}, "std of grpo must be true or false (got 'no')"),
        ("raft", {"above": "high"}, "above of raft must be a number (got 'high')"),
        ("reinforce", {"half_life": math.nan}, "half_life of reinforce must be a number (got nan)"),
        ("reinforce", {"least_seen": True}, "least_seen of reinforce must be a number (got True)"),
        ("reinforce", {"by": 3}, "by of reinforce must be a string (got 3)"),
        ("reinforce", {"by": "user"}, "by is 'user', and rollouts have the labels family, kind, package of their task"),
        ("no.such.module:A", {}, "cannot be loaded: ModuleNotFoundError: No module named 'no'"),
        (f"{__name__}:Nobody", {}, "cannot be loaded"),
        ("collections:Counter", {}, "is no class that derives from"),
    ],
)
def test_what_cannot_be_had_is_said(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="algorithm") as found:
        load_algorithm(name, budget=1, options=options)
    assert said in str(found.value)


def test_reinforce_against_a_decayed_mean_by_bucket() -> None:
    """In float64 over everything that was seen, with bucket, decay and fallback written out."""
    rng = np.random.default_rng(0)
    ours = load_algorithm("reinforce", budget=10, options={"by": "kind", "half_life": 5.0, "least_seen": 4})
    seen: list[tuple[str, float]] = []
    for step in range(12):
        kinds = ("swap", "compare", "") if step > 2 else ("", "", "")
        made = [
            replace(trajectory(f"{step}-{i}", float(rng.random()), ["pss"]), labels={"kind": kind} if kind else {})
            for i, kind in enumerate(kinds)
        ]
        for t in made:
            of = [r for kind, r in seen if kind == t.labels.get("kind")] if t.labels else []
            known = of if len(of) >= 4 else [r for _, r in seen]
            weights = 0.5 ** (np.arange(len(known))[::-1] / 5.0)
            expected = t.reward - float(np.average(known, weights=weights)) if len(known) >= 4 else 0.0
            ((found,),) = ours.annotate([t])
            np.testing.assert_allclose(found["rl"], [0, expected, expected], rtol=1e-5, atol=1e-7)
        ours.observe([[t] for t in made])
        seen += [(t.labels.get("kind", ""), t.reward) for t in made]


def test_a_restarted_run_tells_an_algorithm_what_it_has_missed() -> None:
    """The same weights, whether one process has built all batches or another one goes on with the fifth."""
    rng = np.random.default_rng(1)
    batches = {
        step: [[trajectory(f"{step}-{i}", float(rng.random()), ["ps"])] for i in range(8)] for step in range(1, 8)
    }
    batches[2][0][0] = replace(batches[2][0][0], status="infra_error")
    batches[3][0][0].labels["bad"] = "1"

    def built(first: int) -> dict[int, list[float]]:
        algorithm = load_algorithm("reinforce", budget=10)
        history = History(algorithm, batches.__getitem__, lambda t: "bad" in t.labels)
        found = {}
        for step in range(first, 8):
            history.until(step)
            batch, _ = build_batch(
                batches[step], algorithm, step=step, batch_id="x", generation_budget=10, left_out=history.left_out
            )
            found[step] = batch.weights["rl"].tolist()
        return found

    whole = built(1)
    assert {step: weights for step, weights in whole.items() if step >= 5} == built(5)
    assert not any(whole[1]) and not any(whole[2]) and any(whole[4])
    seen: list[float] = []  # what an algorithm was shown before a batch
    for step, groups in batches.items():
        rewards = [t.reward for (t,) in groups if t.status != "infra_error" and "bad" not in t.labels]
        if len(seen) >= 16:
            base = np.average(seen, weights=0.5 ** (np.arange(len(seen))[::-1] / 256))
            np.testing.assert_allclose(whole[step], [w for r in rewards for w in (0, r - base)], atol=1e-6)
        seen += rewards
