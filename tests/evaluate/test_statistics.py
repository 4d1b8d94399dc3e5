from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from woodshed.evaluate.statistics import RATES, bootstrap, paired_gain, pass_at_k


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_equals_enumeration(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            exact = np.mean([any(pick) for pick in combinations(outcomes, k)])
            assert pass_at_k(n, c, k) == pytest.approx(float(exact))


def test_pass_at_k_refuses_nonsense() -> None:
    for n, c, k in ((4, 5, 1), (4, 2, 5), (4, 2, 0)):
        with pytest.raises(ValueError):
            pass_at_k(n, c, k)


def test_bootstrap_interval_matches_the_normal_one() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, 400)
    found = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)


def test_paired_gain_is_tighter_than_unpaired() -> None:
    before = np.random.default_rng(2).random(100)
    gain = paired_gain(list(before), list(before + 0.1))
    assert gain.low == pytest.approx(0.1) and gain.high == pytest.approx(0.1)
    with pytest.raises(ValueError, match="same tasks"):
        paired_gain([0.0], [0.0, 1.0])


@pytest.mark.parametrize("n", [1, 4, 128])
def test_the_interval_of_tasks_that_all_agree_allows_for_others(n: int) -> None:
    """If more tasks than the interval allows were solved, n tasks without one would be seen in less than 2.5 %."""
    never, always = bootstrap([0.0] * n, bounds=RATES), bootstrap([1.0] * n, bounds=RATES)
    assert (never.mean, never.low, always.mean, always.high) == (0.0, 0.0, 1.0, 1.0)
    assert (1 - never.high) ** n == pytest.approx(0.025) and always.low == pytest.approx(1 - never.high)
    same = paired_gain([0.5] * n, [0.5] * n, bounds=RATES)
    assert (same.mean, same.low, same.high) == pytest.approx((0.0, -never.high, never.high))
    assert bootstrap([3.0] * n).low == 3.0, "nothing is known of values without bounds"
