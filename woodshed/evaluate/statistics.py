"""pass@k and intervals. Tasks are the unit of resampling: samples of one task are not independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that at least one of ``k`` samples passes, from ``c`` of ``n`` that did.

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


def bootstrap(values: Sequence[float] | NDArray[np.float64], *, resamples: int = 4000, seed: int = 0) -> Estimate:
    """Mean of per-task ``values`` [tasks] and its 95 % interval by resampling tasks. NaN for no tasks."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return Estimate(float("nan"), float("nan"), float("nan"))
    rng = np.random.default_rng(seed)
    means = array[rng.integers(0, len(array), (resamples, len(array)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(array.mean()), float(low), float(high))


def paired_gain(before: Sequence[float], after: Sequence[float], *, seed: int = 0) -> Estimate:
    """Mean of after - before over the same tasks, resampled by task. Raises ValueError if the lengths differ."""
    if len(before) != len(after):
        raise ValueError(f"paired gain needs the same tasks: {len(before)} before, {len(after)} after")
    return bootstrap(np.asarray(after, np.float64) - np.asarray(before, np.float64), seed=seed)
