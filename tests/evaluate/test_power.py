"""Power, noise floor and expanded intervals against closed forms and simulation."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from woodshed.evaluate.comparison import EvaluatedEpisode, PolicyEpisodes
from woodshed.evaluate.power import (
    Spread,
    assumed_spread,
    detectable,
    measured_spread,
    noise_floor,
    power,
    sample_variance,
    tasks_needed,
)
from woodshed.evaluate.statistics import bootstrap, paired_gain, t_quantile
from woodshed.evaluate.suites.base import Suite
from woodshed.run.evaluation.planning import measured
from woodshed.run.evaluation.policies import EvaluationError
from woodshed.run.evaluation.results import compute_results


def test_standard_error_is_the_law_of_total_variance() -> None:
    spread = assumed_spread(rate=0.4, task_sd=0.3, difference=0.1, difference_sd=0.2)
    assert spread.between == pytest.approx(0.04)
    assert spread.within == pytest.approx(0.4 * 0.6 - 0.09 + 0.5 * 0.5 - 0.09)
    assert spread.standard_error(100, 4) == pytest.approx(math.sqrt((0.04 + spread.within / 4) / 100))


def test_standard_error_is_that_of_a_simulation() -> None:
    """Task rates from {0.2, 0.6}, true differences from {0, 0.2}: mean 0.4 and 0.1, deviations 0.2 and 0.1."""
    rng = np.random.default_rng(0)
    n, k, runs = 40, 3, 20_000
    p = rng.choice([0.2, 0.6], (runs, n))
    q = p + rng.choice([0.0, 0.2], (runs, n))
    measured = (rng.binomial(k, q) / k - rng.binomial(k, p) / k).mean(axis=1)
    within = 0.4 * 0.6 - 0.04 + 0.5 * 0.5 - 0.05  # Var(q) = 0.04 + 0.01
    assert measured.std() == pytest.approx(Spread(0.01, within).standard_error(n, k), rel=0.02)


def test_power_has_the_textbook_values() -> None:
    spread = Spread(1.0, 0.0)  # a z-test with known variance 1
    z = NormalDist()
    assert power(0.0, spread, 50, 1) == pytest.approx(0.05)
    assert power(0.28, spread, 100, 1) == pytest.approx(z.cdf(2.8 - 1.959964) + z.cdf(-2.8 - 1.959964), abs=1e-6)
    assert power(1.0, Spread(0.0, 0.0), 1, 1) == 1.0 and power(0.0, Spread(0.0, 0.0), 1, 1) == 0.0


@pytest.mark.parametrize("difference", [0.02, 0.1, -0.1, 0.5])
@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
def test_tasks_needed_is_the_closed_form_and_the_smallest(difference: float, wanted: float) -> None:
    spread = Spread(0.02, 0.3)
    found = tasks_needed(difference, spread, 4, wanted=wanted)
    z = NormalDist().inv_cdf
    closed = (z(0.975) + z(wanted)) ** 2 * (0.02 + 0.3 / 4) / difference**2  # without the other tail
    assert found == pytest.approx(math.ceil(closed), abs=1)
    assert power(difference, spread, found, 4) >= wanted
    assert found == 1 or power(difference, spread, found - 1, 4) < wanted
    assert detectable(spread, found, 4, wanted=wanted) <= abs(difference) + 1e-5


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="difference of 0"):
        tasks_needed(0.0, Spread(0.1, 0.1), 1)
    with pytest.raises(ValueError, match="power must lie"):
        tasks_needed(0.1, Spread(0.1, 0.1), 1, wanted=1.0)
    with pytest.raises(ValueError, match=r"task_sd is 0\.6"):
        assumed_spread(0.5, 0.6, 0.1, 0.1)
    with pytest.raises(ValueError, match="between 0 and 1"):
        assumed_spread(0.95, 0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="no task has two samples"):
        sample_variance([[True], [False]])


def test_measured_components_are_unbiased() -> None:
    rng = np.random.default_rng(1)
    between, within = [], []
    for _ in range(1500):
        p = rng.choice([0.2, 0.6], 24)
        q = p + rng.choice([-0.1, 0.3], 24)  # tau = 0.2
        a, b = (list(map(list, rng.random((24, 4)) < rate[:, None])) for rate in (p, q))
        found = measured_spread(a, b)
        between.append(found.between)
        within.append(found.within)
    assert np.mean(within) == pytest.approx(0.4 * 0.6 - 0.04 + 0.5 * 0.5 - 0.08, rel=0.02)
    assert np.mean(between) == pytest.approx(0.04, rel=0.06)  # clipped at 0, so a little above


def test_noise_floor_is_the_spread_of_repeated_evaluations() -> None:
    rng = np.random.default_rng(2)
    p = rng.random(30)
    again = rng.binomial(5, p, (20_000, 2, 30)).mean(axis=2) / 5
    expected = noise_floor(float(np.mean(p * (1 - p))), 30, 5)
    assert (again[:, 1] - again[:, 0]).std() == pytest.approx(expected, rel=0.03)


def test_noise_floor_of_tasks_with_unequal_numbers_of_samples() -> None:
    """As in an evaluation that was interrupted: the mean over tasks is as noisy as its tasks with few samples."""
    rng = np.random.default_rng(4)
    counts = np.array([8] * 3 + [1] * 9)
    again = (rng.binomial(counts, 0.4, (40_000, 2, len(counts))) / counts).mean(axis=2)
    solved = [[True, False, False, True, False, False, True, False]] * 3 + [[False]] * 9
    mine = [
        EvaluatedEpisode(f"{task}:{n}", "s", f"t{task}", passed, "submitted", 1, 1, 1, 1.0)
        for task, each in enumerate(solved)
        for n, passed in enumerate(each)
    ]
    policy = PolicyEpisodes("a", "runs/a", "h", mine, planned=96)
    settings = {"seed": 0, "samples": 8, "suites": {"s": {}}, "policies": {}}
    results = compute_results([policy], [Suite("s", "s", ())], settings, baselines=["a"])
    within = sample_variance(solved)
    floor = results["policies"][0]["noise_floor"] * math.sqrt(0.24 / within)
    assert floor == pytest.approx((again[:, 1] - again[:, 0]).std(), rel=0.03)


@pytest.mark.parametrize(("freedom", "table"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (120, 1.9799)])
def test_t_quantiles_are_those_of_the_table(freedom: int, table: float) -> None:
    assert t_quantile(1.959964, freedom) == pytest.approx(table, abs=0.01)


def test_the_interval_of_a_few_tasks_covers() -> None:
    """Plain percentiles of the same resamples cover too little."""
    rng = np.random.default_rng(3)
    plain = covered = 0
    for n in range(1500):
        values = rng.normal(0.2, 1.0, 10)
        found = bootstrap(values, resamples=400, seed=n)
        means = values[np.random.default_rng(n).integers(0, 10, (400, 10))].mean(axis=1)
        low, high = np.percentile(means, [2.5, 97.5])
        plain, covered = plain + (low <= 0.2 <= high), covered + (found.low <= 0.2 <= found.high)
        assert found.low <= low and high <= found.high
    assert plain / 1500 < 0.92 and covered / 1500 == pytest.approx(0.95, abs=0.02)
    gain = paired_gain([0.0, 0.5, 0.0], [0.5, 0.5, 1.0])
    assert gain.mean == pytest.approx(0.5) and gain.low < 0.05 and gain.high > 0.95


@pytest.mark.parametrize("solved", [{"a": 0}, {"a": 4, "b": 4}, {"a": 4, "b": 0}])
def test_a_plan_needs_an_evaluation_in_which_samples_differ(solved: dict[str, int]) -> None:
    """Without any variance, one task with one sample would show every difference."""
    tasks = {str(task): {name: [count, 4] for name, count in solved.items()} for task in range(8)}
    results = {"policies": [{"name": name} for name in solved], "tasks": {"suite": tasks}}
    with pytest.raises(EvaluationError, match="--from here: all samples of every task agree"):
        measured(results, "here")
    tasks["0"]["a"] = [1, 4]
    assert measured(results, "here")[0].within > 0
