"""REINFORCE (Williams 1992): one rollout per prompt, with a baseline from earlier rollouts. Live RL has no groups."""

from __future__ import annotations

from collections.abc import Sequence

from woodshed.record.task import TASK_LABELS
from woodshed.record.trajectory import Trajectory

from .base import Algorithm, Weights, spread


class Reinforce(Algorithm):
    """A = R - b, with b the decayed mean reward of earlier rollouts of the same bucket.

    ``by``: name of the trajectory label whose value is the bucket, one of those that come from the task (``family``,
    ``kind``, ``package``), since a bucket that depends on what a rollout did would bias its baseline. If ``by`` is
    empty or a trajectory lacks the label, the bucket is the common one, which counts all rollouts. ``half_life``:
    number of later rewards of the bucket after which a reward counts half. ``least_seen``: number of rollouts that a
    bucket needs; below it the baseline is that of the common bucket, and if this has too few as well, the advantage
    is 0. The baseline comes from earlier batches only, so it does not depend on the rollout itself.
    """

    least = 1

    def __init__(self, budget: int, *, by: str = "", half_life: float = 256.0, least_seen: int = 16) -> None:
        super().__init__(budget)
        if half_life <= 0:
            raise ValueError(f"rl.algorithm_options: half_life is {half_life}; it must be above 0")
        if by and by not in TASK_LABELS:
            known = ", ".join(TASK_LABELS)
            raise ValueError(f"rl.algorithm_options: by is {by!r}, and rollouts have the labels {known} of their task")
        self.label, self.least_seen = by, least_seen
        self._decay = 0.5 ** (1 / half_life)
        self._seen: dict[str, tuple[int, float, float]] = {}  # bucket -> rollouts, sum of weights, weighted rewards

    def annotate(self, group: Sequence[Trajectory]) -> list[list[Weights]]:
        return [spread(t, self._advantage(t)) for t in group]

    def observe(self, groups: Sequence[Sequence[Trajectory]]) -> None:
        for trajectory in (t for group in groups for t in group):
            for bucket in {"", self._bucket(trajectory)}:
                count, weight, total = self._seen.get(bucket, (0, 0.0, 0.0))
                self._seen[bucket] = count + 1, 1 + self._decay * weight, trajectory.reward + self._decay * total

    def _advantage(self, trajectory: Trajectory) -> float:
        for bucket in (self._bucket(trajectory), ""):
            count, weight, total = self._seen.get(bucket, (0, 0.0, 0.0))
            if count >= max(1, self.least_seen):
                return trajectory.reward - total / weight
        return 0.0

    def _bucket(self, trajectory: Trajectory) -> str:
        return f"{self.label}={trajectory.labels[self.label]}" if self.label in trajectory.labels else ""
