"""Credit of trees against definitions in plain Python, and their gradient against float64 autograd over flat rows."""

from __future__ import annotations

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.rl.algorithms.test_batching import trajectory
from tests.train.conftest import CONFIG
from tests.train.test_loss import assert_close, gradients
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.record.segment import Segment
from woodshed.record.trajectory import Fork, Trajectory
from woodshed.rl.algorithms import load_algorithm
from woodshed.rl.batching import build_batch
from woodshed.rl.forks import ForkSettings
from woodshed.rl.settings import RLSettings
from woodshed.train.settings import ImportanceSettings, TrainSettings

NODE = 9
"""Tokens before the node: a prompt of 3, a reply of 3, a result of 3."""
VOCABULARY = 61

rewards = st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=2, max_size=5)


def tree(rewards_RS: list[list[float]], seed: int = 0) -> list[Trajectory]:
    """One root for each list, with a fork for each reward after the first."""
    rng = np.random.default_rng(seed)
    group: list[Trajectory] = []
    for number, rewards_S in enumerate(rewards_RS):
        head = rng.integers(0, VOCABULARY, NODE)
        for sibling, reward in enumerate(rewards_S):
            own = np.concatenate(([sibling], rng.integers(0, VOCABULARY, 2 + sibling)))
            sampled = np.concatenate((np.arange(NODE) // 3 == 1, np.ones(len(own), bool)))
            if sibling:
                sampled[:NODE] = False
            logprobs = np.where(sampled, -4 + 0.1 * rng.standard_normal(len(sampled)), 0).astype(np.float32)
            tokens = np.concatenate((head, own)).astype(np.int32)
            segment = Segment(tokens, sampled, logprobs, np.where(sampled, 0, -1).astype(np.int32))
            root = f"g-{number:02d}"
            fork = Fork(root, 1, 0, NODE) if sibling else None
            made = Trajectory(
                f"{root}.f{sibling - 1}" if sibling else root,
                "t",
                "g",
                "train",
                "h",
                "p",
                "submitted",
                segments=[segment],
                rewards={"outcome": reward},
                fork=fork,
            )
            group.append(made)
    return group


def weights(group: list[Trajectory], name: str = "tree") -> list[np.ndarray]:
    annotated = load_algorithm(name, budget=10).annotate(group)
    return [parts["rl"] for (parts,) in annotated]


@given(r=rewards)
def test_both_advantages_are_differences_to_means_and_sum_to_zero(r: list[list[float]]) -> None:
    group = tree(r)
    found = dict(zip([t.id for t in group], weights(group)))
    values = [statistics.fmean(rewards_S) for rewards_S in r]
    before, after = [], []
    for number, rewards_S in enumerate(r):
        root = found[f"g-{number:02d}"]
        before.append(root[3])
        np.testing.assert_allclose(root[3:6], values[number] - statistics.fmean(values), atol=1e-5)
        if len(rewards_S) == 1:
            np.testing.assert_array_equal(root[NODE:], root[3])
            continue
        names = [f"g-{number:02d}", *(f"g-{number:02d}.f{k}" for k in range(len(rewards_S) - 1))]
        after = [found[name][NODE] for name in names]
        for name, reward in zip(names, rewards_S):
            np.testing.assert_allclose(found[name][NODE:], reward - values[number], atol=1e-5)
            assert name == names[0] or not found[name][:NODE].any(), "what a fork shares weighs nothing in it"
        assert abs(sum(after)) < 1e-4
    assert abs(sum(before)) < 1e-4
    for made, weight in zip(group, found.values()):
        assert not weight[~made.segments[0].sampled].any()


@given(r=st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_without_forks_it_is_the_mean_baseline(r: list[float]) -> None:
    group = [trajectory(f"r{i}", reward, ["ppsoss", "ps"]) for i, reward in enumerate(r)]
    ours, theirs = (load_algorithm(name, budget=10).annotate(group) for name in ("tree", "mean_baseline"))
    for a, b in zip(ours, theirs, strict=True):
        for mine, flat in zip(a, b, strict=True):
            np.testing.assert_array_equal(mine["rl"], flat["rl"])


def test_a_segment_after_the_node_is_credited_to_the_continuation() -> None:
    root, other = trajectory("a", 1.0, ["pss", "pspss", "ps"]), trajectory("b", 0.0, ["ps"])
    fork = Trajectory(
        "a.f0", "t", "g", "train", "h", "p", "submitted",
        segments=trajectory("x", 0.0, ["pppss"]).segments, rewards={"outcome": 0.0}, fork=Fork("a", 2, 1, 3),
    )  # fmt: skip
    first, second, third = (parts["rl"] for parts in load_algorithm("tree", budget=10).annotate([root, other, fork])[0])
    # V is 1/2 of the root and 0 of the other: 1/4 before the node, 1 - 1/2 after it.
    assert first.tolist() == [0, 0.25, 0.25] and third.tolist() == [0, 0.5]
    assert second.tolist() == [0, 0.25, 0, 0.5, 0.5]


def test_loss_and_gradient_are_those_of_flat_rows_in_float64() -> None:
    """Each sampled token once, with its advantage by the definition, over rows that know of no other row."""
    r = [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0]]
    group = tree(r, seed=4)
    algorithm = load_algorithm("tree", budget=10)
    batch, stats = build_batch([group], algorithm, step=1, batch_id="x", generation_budget=10, rollouts=3)
    assert batch.denominators == {"rl": 30.0}, "forks do not change it"
    assert (stats.rollouts, stats.trained, stats.forks) == (7, 7, 4)
    assert stats.reward_mean == pytest.approx(2 / 3), "of the roots"
    decoder = Decoder(CONFIG, seed=1)
    got, seen = gradients(decoder, batch, TrainSettings(importance=ImportanceSettings(mode="off")))

    twin = Decoder(CONFIG, seed=None, dtype=torch.float64)
    twin.load_state_dict({k: v.double() for k, v in decoder.state_dict().items()})
    loss = torch.zeros((), dtype=torch.float64)
    values = [statistics.fmean(rewards_S) for rewards_S in r]
    for made in group:
        tokens = torch.from_numpy(made.segments[0].tokens.astype(np.int64))
        hidden = twin.forward(tokens[None], torch.arange(len(tokens))[None], causal_attend())
        logp = torch.nn.functional.linear(hidden[0, :-1], twin.head_weight).log_softmax(-1)
        number = int(made.id[2:4])
        for at in made.segments[0].sampled.nonzero()[0].tolist():
            forked = len(r[number]) > 1
            advantage = values[number] - statistics.fmean(values)
            if at >= NODE and forked:
                advantage = made.reward - values[number]
            loss = loss - advantage * logp[at - 1, tokens[at]] / 30
    loss.backward()
    assert_close(got, {name: p.grad for name, p in twin.named_parameters()})
    assert sum(seen.loss.values()) == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("rollouts", [None, 5])
def test_how_often_one_group_is_forked_changes_no_weight_of_another(rollouts: int | None) -> None:
    def loss_weights(*groups: list[Trajectory]) -> dict[str, list[float]]:
        algorithm = load_algorithm("tree", budget=10)
        batch, _ = build_batch(groups, algorithm, step=1, batch_id="x", generation_budget=10, rollouts=rollouts)
        assert batch.denominators == {"rl": 50.0}
        found: dict[str, list[float]] = {}
        for row, id in enumerate(batch.trajectories):
            of_row = slice(batch.offsets[row], batch.offsets[row + 1])
            found[id] = (batch.weights["rl"][of_row] / batch.denominators["rl"]).tolist()
        return found

    plain = [replace(t, id=f"h-{n}", group="h") for n, t in enumerate(tree([[1.0], [0.0], [0.0]]))]
    bare, forked = loss_weights(tree([[1.0], [0.0]]), plain), loss_weights(tree([[1.0] * 3, [0.0, 1.0]]), plain)
    assert {t.id for t in plain} <= set(bare) and len(forked) > len(bare)
    assert all(bare[t.id] == forked[t.id] for t in plain)


def test_too_few_roots_are_unpaired_with_their_forks() -> None:
    group = tree([[1.0, 0.0]])
    _, stats = build_batch([group], load_algorithm("tree", budget=10), step=1, batch_id="x", generation_budget=10)
    assert stats.unpaired == 2 and set(stats.fates.values()) == {"unpaired"}


def test_forks_need_an_algorithm_that_compares_them() -> None:
    with pytest.raises(ValueError, match=r'grpo does not compare forks; choose rl\.algorithm="tree"'):
        RLSettings(algorithm="grpo", forks=ForkSettings(count=2))
    assert RLSettings(algorithm="tree", forks=ForkSettings(count=2)).make_algorithm().forks
