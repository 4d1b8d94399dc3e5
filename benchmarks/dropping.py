"""The algorithm of the ablation ``broken_calls_dropped``: rollouts with an invalid call are not trained at all.

This models a training system that discards unparsable replies. An invalid call then has no cost: if a task looks lost,
it becomes relatively more likely, since all other failures are made less likely (see docs/results.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from woodshed import Trajectory
from woodshed.rl.algorithms import Weights, spread
from woodshed.rl.algorithms.mean_baseline import MeanBaseline


class DropBroken(MeanBaseline):
    """The default algorithm over the rollouts of a group whose calls were all valid; the others have weight 0."""

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        valid = [t for t in group if not t.effort.invalid_calls]
        weights = iter(super().annotate(valid) if len(valid) >= self.least else [spread(t, 0.0) for t in valid])
        return [spread(t, 0.0) if t.effort.invalid_calls else next(weights) for t in group]
