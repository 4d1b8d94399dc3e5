"""Which policies of an evaluation are compared: with several baselines, within seeds, and pooled over seeds."""

from __future__ import annotations

import re

import pytest

from woodshed.evaluate.comparison import EvaluatedEpisode, PolicyEpisodes, difference
from woodshed.evaluate.pairs import NoBaseline, choose_baselines, pairs
from woodshed.evaluate.statistics import paired_gain


def policy(
    name: str, rates: dict[str, float], *, samples: int = 10, harness: str = "h", strict: str = ""
) -> PolicyEpisodes:
    """``rates``: share of the samples of each task that are solved."""
    episodes = [
        EvaluatedEpisode(f"{name}:{task}:{n}", "s", task, n < round(rate * samples), "submitted", 3, 10, 90, 1.0)
        for task, rate in rates.items()
        for n in range(samples)
    ]
    return PolicyEpisodes(name, f"runs/{name}", harness, episodes, planned=len(episodes), strict=strict)


def compared(policies: list[PolicyEpisodes], *wanted: str) -> list[tuple[str, str, float]]:
    strict = [p for p in policies if not p.strict]
    baselines = choose_baselines([p.name for p in strict], [p.source for p in strict], wanted)
    found = []
    for one, other in pairs(policies, baselines):
        gain = difference(one, other).gain
        assert gain is not None
        found.append((one.name, other.name, round(gain.mean, 6)))
    return found


def test_the_first_or_the_best_of_several() -> None:
    sft, rft, rl = (
        policy("sft", {"a": 0.2, "b": 0.4}),
        policy("rft", {"a": 0.5, "b": 0.4}),
        policy("rl", {"a": 0.7, "b": 0.4}),
    )
    assert compared([sft, rft, rl]) == [("rft", "sft", 0.15), ("rl", "sft", 0.25)]
    assert compared([sft, rft, rl], "sft", "runs/rft") == [("rl", "rft", 0.1)]
    assert compared([sft]) == []
    with pytest.raises(NoBaseline, match="--baseline z: no such policy; there are sft, rft, rl"):
        compared([sft, rft, rl], "z")


def test_baselines_are_ranked_on_the_tasks_that_all_of_them_have() -> None:
    """One of them has only an easy task left, after a spent budget or infrastructure errors."""
    sft, rft, rl = policy("sft", {"a": 0.9}), policy("rft", {"a": 1.0, "b": 0.2}), policy("rl", {"a": 1.0, "b": 0.4})
    assert compared([sft, rft, rl], "sft", "rft") == [("rl", "rft", 0.1)]
    nothing = policy("none", {})
    assert compared([nothing, sft, rl], "none", "sft") == [("rl", "sft", 0.1)]


def test_seeds_are_compared_within_themselves_and_pooled() -> None:
    policies = [
        policy("sft@0", {"a": 0.2, "b": 0.2}),
        policy("sft@1", {"a": 0.6, "b": 0.2}),
        policy("rft@0", {"a": 0.4, "b": 0.4}),
        policy("rft@1", {"a": 0.2, "b": 0.2}),
        policy("rl@0", {"a": 0.6, "b": 0.4}),
        policy("rl@1", {"a": 0.6, "b": 0.8}),
    ]
    assert compared(policies, "sft", "rft") == [
        ("rl@0", "rft@0", 0.1),
        ("rl@1", "sft@1", 0.3),
        ("rl, 2 seeds", "sft, 2 seeds", 0.3),
    ]
    ((_, pooled_baseline),) = [(a, b) for a, b in pairs(policies, ["sft@0", "sft@1"]) if a.name == "rft, 2 seeds"]
    assert pooled_baseline.name == "sft, 2 seeds" and pooled_baseline.planned == 40
    # The interval of the pooled difference is that of each task's mean over the seeds.
    (rl, sft) = pairs(policies, ["sft@0", "sft@1"])[-1]
    expected = paired_gain([0.4, 0.2], [0.6, 0.6], seed=0)
    assert rl.name == "rl, 2 seeds"
    assert vars(difference(rl, sft).gain) == pytest.approx(vars(expected))


def test_a_baseline_without_seeds_is_of_all_of_them() -> None:
    policies = [policy("base", {"a": 0.2}), policy("rl@0", {"a": 0.4}), policy("rl@1", {"a": 0.8})]
    assert compared(policies) == [("rl@0", "base", 0.2), ("rl@1", "base", 0.6), ("rl, 2 seeds", "base", 0.4)]


def test_a_seed_without_a_baseline_is_named() -> None:
    names = ["sft@0", "rl@0", "rl@1"]
    with pytest.raises(NoBaseline, match=re.escape("rl@1: no baseline has this seed; there are sft@0")):
        choose_baselines(names, names, ["sft"])


def test_open_boxes_are_compared_with_strict_ones_only() -> None:
    policies = [
        policy("sft", {"a": 0.2}),
        policy("sft:open", {"a": 0.3}, strict="sft"),
        policy("rl", {"a": 0.4}),
        policy("rl:open", {"a": 0.9}, strict="rl"),
    ]
    assert compared(policies) == [("sft:open", "sft", 0.1), ("rl", "sft", 0.2), ("rl:open", "rl", 0.5)]


def test_seeds_in_different_harnesses_are_not_pooled_in_silence() -> None:
    policies = [
        policy("sft@0", {"a": 0.2}),
        policy("sft@1", {"a": 0.2}),
        policy("rl@0", {"a": 0.4}),
        policy("rl@1", {"a": 0.4}, harness="g"),
    ]
    one, other = pairs(policies, ["sft@0", "sft@1"])[-1]
    refused = difference(one, other)
    assert one.name == "rl, 2 seeds" and refused.gain is None and "not compared" in refused.note
