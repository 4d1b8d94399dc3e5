"""Curriculum: prefer tasks whose rollouts are expected to get different rewards, because only these give a gradient.

A prompt is trained once, so a run has no pass rate of its own for a task before it dispatches it. It estimates the
rate from tasks with common features (what was changed, where it is from), with newer policy versions weighing more,
and from the rating of an earlier policy on the task itself (``woodshed tasks rate``). A group's advantages have the
variance p (1 - p); tasks are drawn in proportion to it. As in Thompson sampling (Thompson 1933), p is drawn from its
posterior, so that little-known tasks are tried, and those that seemed too hard or too easy are retried now and then.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from woodshed.record.history import Rating
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.tasks.generators.synthetic.write import COMBINE

from .settings import CurriculumSettings


@dataclass
class _Seen:
    """Discounted counts of one feature: solved rollouts, failed rollouts, and their total effort."""

    solved: float = 0.0
    failed: float = 0.0
    effort: float = 0.0
    version: int = 0

    @property
    def rollouts(self) -> float:
        return self.solved + self.failed


def features(task: Task) -> tuple[str, ...]:
    """Return what a task has in common with others: its package or the family of its function, and what was changed.

    A task with several functions (``rl/growth/``) has no family: its failures would make tasks with one function of
    that family look hard.
    """
    generator = task.info.provenance.get("generator", "")
    several = task.info.family == "synthetic" and generator == COMBINE
    package = task.info.provenance.get("package") or ("" if several else task.info.key.split(":", 1)[0])
    return tuple(f for f in (f"from {package}", f"kind {task.info.kind}", f"by {generator}") if not f.endswith(" "))


def group_effort(group: Sequence[Trajectory]) -> float:
    """Return the mean of turns + thinking tokens / 100 per rollout (a heuristic of Composer 2's report, section 4)."""
    return sum(t.effort.turns + t.effort.thinking_tokens / 100 for t in group) / max(1, len(group))


class Curriculum:
    """Pass-rate estimates by task feature. Deterministic: the same groups in the same order give the same choices."""

    def __init__(self, settings: CurriculumSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._seen: dict[str, _Seen] = {}
        self._all = _Seen()
        self._rated: dict[str, _Seen] = {}

    def set_prior(self, task: Task, rating: Rating) -> None:
        """Set the rating of ``task`` from before the run; it counts like one more feature."""
        effort = (rating.turns + rating.thinking_tokens / 100) * rating.rollouts
        self._rated[task.name] = _Seen(rating.solved, rating.rollouts - rating.solved, effort)

    def update(self, task: Task, group: Sequence[Trajectory], version: int) -> None:
        """Add the results of a graded group, sampled by ``version`` of the policy."""
        graded = [t for t in group if t.outcome is not None]
        solved = sum(1 for t in graded if t.outcome is not None and t.outcome.resolved)
        for seen in (self._all, *(self._seen.setdefault(f, _Seen()) for f in features(task))):
            keep = 0.5 ** (max(0, version - seen.version) / self.settings.half_life)
            seen.solved = seen.solved * keep + solved
            seen.failed = seen.failed * keep + len(graded) - solved
            seen.effort = seen.effort * keep + group_effort(graded) * len(graded)
            seen.version = max(seen.version, version)

    def choose(self, unused: Sequence[Task], position: int, progress: float) -> Task:
        """Return one of ``unused``, which must not be empty. ``position``: number of the choice, part of the seed.
        ``progress``: finished share of the run; tasks that take more effort weigh more towards its end."""
        rng = random.Random(f"curriculum-{self.seed}-{position}")
        some = rng.sample(unused, min(len(unused), self.settings.candidates))
        weights = [self._weight(task, rng, progress) for task in some]
        return rng.choices(some, weights)[0]

    def _weight(self, task: Task, rng: random.Random, progress: float) -> float:
        known = [seen for f in features(task) if (seen := self._seen.get(f)) is not None and seen.rollouts]
        known += [self._rated[task.name]] if task.name in self._rated else []
        # Each feature adds its difference from the log odds of all tasks, so an uninformative feature adds nothing.
        base = _logit(self._prior)
        p = _sigmoid(base + sum(_logit(self._draw(seen, rng)) - base for seen in known)) if known else rng.random()
        harder = 0.0
        if known and self._all.effort:
            mean = self._all.effort / self._all.rollouts
            harder = sum(seen.effort / seen.rollouts for seen in known) / len(known) / mean - 1
        return max(1e-3, p * (1 - p)) * max(0.1, 1 + self.settings.harder * progress * harder)

    def _draw(self, seen: _Seen, rng: random.Random) -> float:
        """Draw a pass rate from a feature's Beta posterior. Rollouts of one group are correlated, so each counts as
        ``group_weight`` independent rollouts; the rate over all tasks is the prior, with the weight of two."""
        weight, prior = self.settings.group_weight, self._prior
        return rng.betavariate(weight * seen.solved + 2 * prior, weight * seen.failed + 2 - 2 * prior)

    @property
    def _prior(self) -> float:
        return (self._all.solved + 1) / (self._all.rollouts + 2)


def _logit(p: float) -> float:
    p = min(max(p, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def replay(curriculum: Curriculum, groups: Iterable[tuple[Task, Sequence[Trajectory], int]]) -> None:
    """Update ``curriculum`` with the (task, rollouts, version) groups of an earlier start of the run."""
    for task, group, version in groups:
        curriculum.update(task, group, version)
