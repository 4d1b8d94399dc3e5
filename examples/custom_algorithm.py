"""An algorithm of your own: learn from the best rollout of a group only, as supervised text.

woodshed run my-recipe.toml --set 'rl.algorithm="custom_algorithm:Best"'
"""

from collections.abc import Sequence

from woodshed import Algorithm, Trajectory
from woodshed.rl.algorithms import Weights, spread


class Best(Algorithm):
    """``above``: reward that the best must exceed. The loss part ``ce`` is cross-entropy (``train/parts.py``)."""

    parts = ("ce",)

    def __init__(self, budget: int, *, above: float = 0.0) -> None:
        super().__init__(budget)
        self.above = above

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        best = max(t.reward for t in group)
        return [spread(t, float(t.reward == best > self.above), "ce") for t in group]
