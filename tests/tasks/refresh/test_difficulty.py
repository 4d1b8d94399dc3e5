"""Shares with intervals, and how policies do over tasks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from woodshed.evaluate import arms
from woodshed.record.history import BASELINES, History, Mark, Rating
from woodshed.stages.baselines import SAMPLE
from woodshed.tasks.library.difficulty import Share, ever_solved, lines_of, spread
from woodshed.tasks.library.refresh.decide import newest


def rating(group: str, solved: int, rollouts: int, version: int = 0) -> Rating:
    return Rating(group, "p", version, rollouts, solved, "rate", "2026-01-02T03:04:05Z", turns=2.5)


@pytest.mark.parametrize(("count", "of"), [(0, 1), (0, 8), (3, 8), (8, 8), (4, 4), (50, 100), (999, 1000)])
def test_the_interval_is_where_the_score_test_does_not_reject(count: int, of: int) -> None:
    """Wilson's interval, found by searching instead of by the formula: |k/n - p| = z sqrt(p (1 - p) / n)."""
    low, high = Share(count, of).interval
    p = np.linspace(0, 1, 200_001)
    inside = p[np.abs(count / of - p) <= 1.959964 * np.sqrt(p * (1 - p) / of) + 1e-12]
    assert low == pytest.approx(inside.min(), abs=1e-5) and high == pytest.approx(inside.max(), abs=1e-5)


def test_nothing_is_known_of_nothing() -> None:
    assert Share(0, 0).interval == (0.0, 1.0) and str(Share(0, 0)) == "none of none"
    assert str(Share(3, 8)) == "3 of 8, 0.38 [0.14, 0.69]"


def test_a_history_in_words() -> None:
    history = History(
        (rating("a", 0, 4), rating("b", 4, 4, version=9)),
        Mark("retired", "too easy", "2026-01-03T00:00:00Z", ("woodshed/harder",)),
    )
    assert lines_of(history) == [
        "2026-01-02  p version 0 (rate): 0 of 4, 0.00 [0.00, 0.49] solved; 2.5 turns, 0 thinking tokens",
        "2026-01-02  p version 9 (rate): 4 of 4, 1.00 [0.51, 1.00] solved; 2.5 turns, 0 thinking tokens",
        "2026-01-03  retired: too easy",
        "            hardened as woodshed/harder",
    ]
    assert ever_solved(history) == Share(4, 8)


def test_tasks_are_the_unit() -> None:
    rated = [History((rating("a", 0, 4), rating("b", 1, 4))), History((rating("c", 4, 4), rating("d", 2, 2, 5)))]
    first, second = spread([*rated, History()])
    assert (first.version, first.rollouts) == (0, 12)
    assert (first.never, first.sometimes, first.always) == (Share(0, 2), Share(1, 2), Share(1, 2))
    assert (second.version, second.always) == (5, Share(1, 1))


def test_policies_of_one_version_are_told_apart() -> None:
    """A run's baselines have version 0, like the policy that RL starts from. So does SFT on what RL solved."""
    rated = History(
        tuple(replace(rating(kind, solved, 2), kind=kind) for kind, solved in (("before", 0), ("after", 2)))
    )
    before, after = spread([rated])
    assert (before.kind, before.rollouts, before.never) == ("before", 2, Share(1, 1))
    assert (after.kind, after.rollouts, after.always) == ("after", 2, Share(1, 1))
    trained = [replace(rating(name, solved, 8), checkpoint=name) for name, solved in (("a", 0), ("b", 8))]
    assert newest(History((trained[0], replace(trained[1], date="2026-02-02T00:00:00Z"))))[1] == Share(8, 8)


def test_a_baseline_is_not_the_newest_policy_of_its_run() -> None:
    """Baselines are sampled after RL, from the policy before it."""
    assert {arms.OTHER, arms.REJECTION, SAMPLE} == BASELINES
    trained = replace(rating("a", 8, 8, 3), kind="train")
    sampled = replace(rating("b", 1, 8), kind=SAMPLE, date="2026-02-02T00:00:00Z")
    assert newest(History((trained, sampled))) == ("p version 3", Share(8, 8))
    assert newest(History((sampled,)))[1] == Share(1, 8)
    assert newest(History((trained, replace(sampled, kind="rejection-dev-0.3"))))[1] == Share(8, 8)
