"""pass@k and intervals. Intervals resample tasks, because samples of one task are not independent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` samples passes, given that ``c`` of
    ``n`` did.

    1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, section 2.1). Raises ValueError unless k <= n.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n} c={c} k={k}")
    return 1.0 - comb(n - c, k) / comb(n, k)


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks with a 95 % percentile bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def __format__(self, spec: str) -> str:
        """``+`` shows the signs, for a difference."""
        if spec == "+":
            return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"
        return format(str(self), spec)


RATES = (0.0, 1.0)
"""Lowest and highest possible value of a task's pass rate."""


def bootstrap(
    values: Sequence[float] | NDArray[np.float64],
    *,
    bounds: tuple[float, float] | None = None,
    resamples: int = 4000,
    seed: int = 0,
) -> Estimate:
    """Return the mean of per-task ``values`` [tasks] and its 95 % interval by resampling tasks. NaN for no tasks.

    Its percentiles are further out than 2.5 and 97.5, which corrects for a small number of tasks (Hesterberg 2015,
    arXiv:1411.5279, section 5.3): with 16 tasks the plain interval covers 90 %, not 95 %.

    Equal values have no spread to resample. With ``bounds``, the lowest and highest possible value, the interval then
    allows for the largest share of other tasks of which none is seen among n (Clopper and Pearson 1934).
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    if bounds is not None and np.ptp(array) < 1e-9:
        unseen, value = 1 - 0.025 ** (1 / len(array)), float(array[0])
        return Estimate(value, value - unseen * (value - bounds[0]), value + unseen * (bounds[1] - value))
    rng = np.random.default_rng(seed)
    means = array[rng.integers(0, len(array), (resamples, len(array)))].mean(axis=1)
    tail = _expanded_tail(len(array))
    low, high = np.percentile(means, [tail, 100 - tail])
    return Estimate(float(array.mean()), float(low), float(high))


def t_quantile(z: float, freedom: int) -> float:
    """Return the quantile of Student's t with ``freedom`` degrees of freedom at the level of the normal quantile ``z``.

    Abramowitz & Stegun 26.7.5; the error is below 0.01 for five degrees or more and z up to 2.
    """
    v = float(freedom)
    terms = (
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return z + sum(terms)


def _expanded_tail(count: int) -> float:
    """Return the percentile of the lower end for n = ``count`` tasks; its normal quantile is -t * sqrt(n / (n - 1))."""
    if count < 2:
        return 0.0
    normal = NormalDist()
    wide = t_quantile(normal.inv_cdf(0.975), count - 1) * math.sqrt(count / (count - 1))
    return 100 * normal.cdf(-wide)


def paired_gain(
    before: Sequence[float], after: Sequence[float], *, bounds: tuple[float, float] | None = None, seed: int = 0
) -> Estimate:
    """Return the mean of after - before over the same tasks, with an interval by resampling tasks (see ``bootstrap``).
    ``bounds``: the lowest and highest possible value of either. Raises ValueError if the lengths differ."""
    if len(before) != len(after):
        raise ValueError(f"paired gain needs the same tasks: {len(before)} before, {len(after)} after")
    difference = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    reach = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
    return bootstrap(difference, bounds=reach, seed=seed)
