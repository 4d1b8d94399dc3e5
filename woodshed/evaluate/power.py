"""Power analysis: number of tasks and samples that show a difference, in a two-level model (tasks, samples of a task).

Policies A and B work on the same n tasks, K samples each. Task i has true pass rates p_i and q_i; the measured
difference is the mean over tasks of the differences of sample means. Its variance (law of total variance) is

    (tau^2 + w / K) / n,   tau^2 = Var(q_i - p_i),   w = E[p_i (1 - p_i)] + E[q_i (1 - q_i)]

tau^2 is the variance between tasks: more samples do not reduce its share, more tasks do. w is sampling noise. Two runs
of the same policy on the same tasks differ only by sampling, with standard deviation sqrt(2 E[p(1-p)] / (K n)): the
noise floor. Intervals come from resampling tasks (``statistics.py``), whose standard error estimates the same variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, variance

_NORMAL = NormalDist()
_MOST_TASKS = 10**15


@dataclass(frozen=True)
class Spread:
    """Variance components of a paired comparison. ``between``: tau^2, variance over tasks of the true difference.
    ``within``: w, the expected variance of one sample of A plus that of one sample of B."""

    between: float
    within: float

    def __post_init__(self) -> None:
        if not (self.between >= 0 and self.within >= 0):
            raise ValueError(f"variances must not be negative, got between={self.between} within={self.within}")

    def standard_error(self, tasks: int, samples: float) -> float:
        """Return the standard error of the measured difference. ``samples``: of each task, their harmonic mean if tasks
        differ. Raises ValueError below one task or sample."""
        if tasks < 1 or samples < 1:
            raise ValueError(f"needs at least one task and one sample, got tasks={tasks} samples={samples}")
        return math.sqrt((self.between + self.within / samples) / tasks)


def assumed_spread(rate: float, task_sd: float, difference: float, difference_sd: float) -> Spread:
    """Return the variance components from assumptions, before anything was measured.

    ``rate``: mean pass rate of A. ``task_sd``: standard deviation of true pass rates over tasks, for A and B.
    ``difference``: mean of q - p. ``difference_sd``: tau. Raises ValueError if no rates between 0 and 1 have these
    moments: the variance of rates with mean m is at most m (1 - m).
    """
    if difference_sd < 0:
        raise ValueError(f"difference_sd is {difference_sd}; a standard deviation is not negative")
    within = 0.0
    for name, m in (("rate", rate), ("rate + difference", rate + difference)):
        if not 0 <= m <= 1:
            raise ValueError(f"{name} is {m:g}; a pass rate lies between 0 and 1")
        noise = m * (1 - m) - task_sd**2
        if noise < -1e-12 or task_sd < 0:
            raise ValueError(
                f"task_sd is {task_sd:g}, but rates with mean {m:g} have one between 0 and {math.sqrt(m * (1 - m)):.3f}"
            )
        within += max(0.0, noise)  # E[p (1 - p)] = m (1 - m) - Var(p)
    return Spread(difference_sd**2, within)


def measured_spread(a: Sequence[Sequence[bool]], b: Sequence[Sequence[bool]]) -> Spread:
    """Estimate the variance components from samples of A and B on the same tasks: [tasks][samples], two tasks or more.

    Within: the mean over tasks of the unbiased sample variances (tasks with two samples or more). Between: the variance
    over tasks of the measured difference minus its share of sampling noise, at least 0. Raises ValueError if the
    numbers of tasks differ, or no task of a policy has two samples.
    """
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"needs the same two tasks or more for both policies, got {len(a)} and {len(b)}")
    noise_a, noise_b = sample_variance(a), sample_variance(b)
    differences = [mean(map(float, y)) - mean(map(float, x)) for x, y in zip(a, b, strict=True)]
    noise = mean(noise_a / len(x) + noise_b / len(y) for x, y in zip(a, b, strict=True))
    return Spread(max(0.0, variance(differences) - noise), noise_a + noise_b)


def sample_variance(samples: Sequence[Sequence[bool]]) -> float:
    """Return an unbiased estimate of E[p (1 - p)] from [tasks][samples]. Raises ValueError if no task has two
    samples."""
    each = [variance(list(map(float, passed))) for passed in samples if len(passed) > 1]
    if not each:
        raise ValueError(
            "no task has two samples, so sampling noise cannot be told from tasks; give --samples 2 or more"
        )
    return mean(each)


def noise_floor(within_one: float, tasks: int, samples: float) -> float:
    """Return the standard deviation of the difference between two evaluations of one policy on the same tasks.

    ``within_one``: E[p (1 - p)] of that policy (``sample_variance``). ``samples``: see ``Spread.standard_error``.
    """
    return Spread(0.0, 2 * within_one).standard_error(tasks, samples)


def power(difference: float, spread: Spread, tasks: int, samples: int, *, level: float = 0.95) -> float:
    """Return the probability that the two-sided ``level`` interval of the difference excludes 0 (normal
    approximation)."""
    error = spread.standard_error(tasks, samples)
    z = _NORMAL.inv_cdf(0.5 + level / 2)
    if error == 0:
        return 1.0 if difference else 0.0
    shift = abs(difference) / error
    return _NORMAL.cdf(shift - z) + _NORMAL.cdf(-shift - z)


def tasks_needed(difference: float, spread: Spread, samples: int, *, wanted: float = 0.8, level: float = 0.95) -> int:
    """Return the minimum number of tasks with which ``power`` reaches ``wanted``. Raises ValueError for a difference of
    0, or a wanted power not between 1 - ``level`` and 1."""
    if not difference:
        raise ValueError("a difference of 0 cannot be shown by any number of tasks")
    if not 1 - level < wanted < 1:
        raise ValueError(f"power must lie between {1 - level:.2f} and 1, got {wanted:g}")
    high = 1
    while power(difference, spread, high, samples, level=level) < wanted:
        high *= 2
        if high > _MOST_TASKS:
            raise ValueError(f"a difference of {difference:g} cannot be shown with fewer than {_MOST_TASKS:.0e} tasks")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if power(difference, spread, middle, samples, level=level) < wanted:
            low = middle
        else:
            high = middle
    return high


def detectable(spread: Spread, tasks: int, samples: int, *, wanted: float = 0.8, level: float = 0.95) -> float:
    """Return the smallest difference with which ``power`` reaches ``wanted`` (by bisection, to 1e-6). Raises ValueError
    for a wanted power not between 1 - ``level`` and 1."""
    if not 1 - level < wanted < 1:
        raise ValueError(f"power must lie between {1 - level:.2f} and 1, got {wanted:g}")
    low, high = 0.0, 10 * spread.standard_error(tasks, samples) + 1e-9
    while high - low > 1e-6:
        middle = (low + high) / 2
        if power(middle, spread, tasks, samples, level=level) < wanted:
            low = middle
        else:
            high = middle
    return high
