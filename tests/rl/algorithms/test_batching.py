from dataclasses import replace

import numpy as np
import pytest

from woodshed.record.segment import Altered, Segment
from woodshed.record.trajectory import ExitStatus, Fork, Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.rollout.failures import FAULT

DEFAULT = load_algorithm("mean_baseline", budget=10)


def segment(sampled: str, version: int = 3, first_token: int = 10) -> Segment:
    """One character per token: ``s`` sampled, anything else not."""
    mask = np.array([c == "s" for c in sampled])
    tokens = np.arange(first_token, first_token + len(mask), dtype=np.int32)
    return Segment(
        tokens, mask, np.where(mask, -0.1 * tokens, 0).astype(np.float32), np.where(mask, version, -1).astype(np.int32)
    )


def trajectory(
    name: str, reward: float, segments: list[str], *, task: str = "t", status: ExitStatus = "submitted"
) -> Trajectory:
    made = [segment(s) for s in segments]
    return Trajectory(name, task, "g", "train", "h", "p", status, segments=made, rewards={"outcome": reward})


def test_every_sampled_token_of_every_segment_gets_the_advantage() -> None:
    group = [trajectory("a", 1.0, ["ppssoss", "pposs"]), trajectory("b", 0.0, ["ppsos"])]
    batch, stats = build_batch([group], DEFAULT, step=4, batch_id="x", generation_budget=50)
    assert batch.trajectories == ["a", "a", "b"] and batch.lengths.tolist() == [7, 5, 5]
    expected = [0, 0, 0.5, 0.5, 0, 0.5, 0.5, 0, 0, 0, 0.5, 0.5, 0, 0, -0.5, 0, -0.5]
    np.testing.assert_array_equal(batch.weights["rl"], np.float32(expected))
    sampled = batch.weights["rl"] != 0
    assert np.isnan(batch.behaviour_logprobs[~sampled]).all()
    np.testing.assert_allclose(batch.behaviour_logprobs[sampled], -0.1 * batch.tokens[sampled], rtol=1e-6)
    assert (batch.versions[sampled] == 3).all() and (batch.versions[~sampled] == -1).all()
    assert batch.denominators == {"rl": 2 * 50.0} and batch.step == 4
    assert stats.trained == 2 and stats.segments == 3 and stats.sampled_tokens == 8
    assert stats.reward_mean == 0.5 and stats.reward_best_mean == 1.0


def test_weight_does_not_depend_on_length() -> None:
    for length in (1, 40):
        group = [trajectory("a", 1.0, ["p" + "s" * length]), trajectory("b", 0.0, ["ps"])]
        batch, _ = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=64, rollouts=96)
        assert batch.weights["rl"][1] == 0.5 and batch.denominators["rl"] == 96 * 64


def test_infra_errors_are_masked_and_leave_the_baseline() -> None:
    group = [
        trajectory("a", 1.0, ["pss"]),
        trajectory("b", 0.0, ["pss"]),
        trajectory("lost", 0.0, ["ps"], status="infra_error"),
        trajectory("limit", 0.5, ["pss"], status="limit"),
    ]
    batch, stats = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert "lost" not in batch.trajectories
    assert stats.infra_errors == 1 and stats.trained == 2 and stats.zero_advantage == 1
    assert batch.weights["rl"][1] == 0.5
    assert batch.denominators["rl"] == 40
    assert stats.reward_mean == stats.reward_terms["outcome"] == 0.5 and stats.reward_best_mean == 1.0


def test_statistics_of_rewards_are_of_the_roots_that_are_left() -> None:
    """Below 0, so that a missing value cannot count as the best."""
    fork = Fork("a", 1, 0, 2)
    group = [
        trajectory("a", -1.0, ["pss"]),
        trajectory("b", -0.5, ["pss"]),
        replace(trajectory("a.f0", 1.0, ["pss"]), fork=fork),
        replace(trajectory("a.f1", 0.0, ["pss"], status="infra_error"), fork=fork, labels={FAULT: "replay"}),
        trajectory("c", 0.0, ["pss"], status="infra_error"),
    ]
    lost = [trajectory("d", 0.0, ["pss"], status="infra_error")]
    tree = load_algorithm("tree", budget=10)
    _, stats = build_batch([group, lost], tree, step=1, batch_id="x", generation_budget=10)
    assert (stats.forks, stats.abandoned_forks, stats.infra_errors, stats.quarantined) == (1, 1, 2, 0)
    assert stats.reward_mean == stats.reward_terms["outcome"] == -0.75 and stats.reward_best_mean == -0.5


def test_quarantined_rollouts_leave_the_batch_and_the_baseline() -> None:
    group = [trajectory(n, r, ["pss"]) for n, r in (("a", 1.0), ("b", 0.0), ("hack", 1.0))]
    batch, stats = build_batch(
        [group], DEFAULT, step=1, batch_id="x", generation_budget=10, left_out=lambda t: t.id == "hack"
    )
    assert batch.trajectories == ["a", "b"] and batch.weights["rl"][1] == 0.5
    assert (stats.rollouts, stats.trained, stats.quarantined, stats.unpaired) == (3, 2, 1, 0)
    assert batch.denominators["rl"] == 30


def test_failures_of_the_policy_stay_in() -> None:
    statuses: list[ExitStatus] = ["limit", "repeated_format_error", "timeout", "submitted"]
    group = [trajectory(s, float(i == 3), ["pss"], status=s) for i, s in enumerate(statuses)]
    batch, stats = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert sorted(batch.trajectories) == sorted(statuses) and stats.infra_errors == 0


def test_groups_without_signal_are_counted_and_dropped() -> None:
    groups = [
        [trajectory("a", 1.0, ["ps"]), trajectory("b", 1.0, ["ps"])],
        [trajectory("c", 1.0, ["ps"]), trajectory("d", 0.0, ["ps"], status="infra_error")],
        [trajectory("e", 0.0, ["ps"], status="infra_error")],
    ]
    batch, stats = build_batch(groups, DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert len(batch) == 0 and len(batch.tokens) == 0
    assert (stats.rollouts, stats.trained, stats.zero_advantage, stats.infra_errors, stats.unpaired) == (5, 0, 2, 2, 1)
    assert stats.zero_groups == 1
    rounding = [trajectory(str(i), 0.1, ["ps"]) for i in range(3)]
    batch, stats = build_batch([rounding], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert len(batch) == 0 and stats.zero_advantage == 3
    batch, stats = build_batch([], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert len(batch) == 0 and stats.rollouts == 0


def test_segments_without_sampled_tokens_are_counted() -> None:
    group = [trajectory("a", 1.0, ["ppp", "s", "ps"]), trajectory("b", 0.0, ["ps"])]
    batch, stats = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert stats.empty_segments == 2 and batch.trajectories == ["a", "b"]


def test_kl_term_reaches_every_sampled_token_those_of_zero_advantage_too() -> None:
    group = [trajectory("a", 1.0, ["pss"]), trajectory("b", 1.0, ["ppssps"])]
    batch, stats = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10, kl_beta=0.1)
    np.testing.assert_allclose(batch.weights["ref_kl"], np.float32(0.1) * np.array([0, 1, 1, 0, 0, 1, 1, 0, 1]))
    assert not batch.weights["rl"].any() and stats.trained == 2
    assert batch.denominators == {"rl": 20.0, "ref_kl": 20.0}
    without, stats = build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10)
    assert set(without.denominators) == {"rl"} and stats.zero_advantage == 2


def test_a_group_is_of_one_task() -> None:
    with pytest.raises(ValueError, match="mixes tasks"):
        build_batch(
            [[trajectory("a", 1, ["ps"]), trajectory("b", 0, ["ps"], task="u")]],
            DEFAULT,
            step=1,
            batch_id="x",
            generation_budget=10,
        )


def test_tokens_sampled_from_another_distribution_are_refused() -> None:
    group = [trajectory("a", 1.0, ["pss"]), trajectory("b", 0.0, ["pss"])]
    group[1].segments[0].altered.append(Altered(1, 3, temperature=0.5))
    with pytest.raises(ValueError, match=r"trajectory b: tokens 1 to 3 .* sampled at temperature 0\.5"):
        build_batch([group], DEFAULT, step=1, batch_id="x", generation_budget=10)
