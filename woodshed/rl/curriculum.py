"""Which task next: those whose groups are expected to disagree, because only they teach.

A prompt is trained once, so a run never sees a task's own pass rate before it counts. What there is: the pass rates of
tasks with which it shares something (what was changed, where it is from), newest policy versions first, and what an
earlier policy was rated at on the task itself (``woodshed tasks rate``). A group's advantages have the
variance p (1 - p); tasks are drawn in proportion to it, p itself being drawn from what is believed about it (Thompson
1933), so that what is little known is tried, and what seemed too hard or too easy is tried again now and then.
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
    """Discounted counts of one feature: rollouts solved and not, and the effort of all of them."""

    solved: float = 0.0
    failed: float = 0.0
    effort: float = 0.0
    version: int = 0

    @property
    def rollouts(self) -> float:
        return self.solved + self.failed


def features(task: Task) -> tuple[str, ...]:
    """What a task has in common with others: its package or the family of its function, and what was changed.

    A task with several functions (``rl/growth/``) is of no family: it would say that those with one are hard.
    """
    generator = task.info.provenance.get("generator", "")
    several = task.info.family == "synthetic" and generator == COMBINE
    package = task.info.provenance.get("package") or ("" if several else task.info.key.split(":", 1)[0])
    return tuple(f for f in (f"from {package}", f"kind {task.info.kind}", f"by {generator}") if not f.endswith(" "))


def group_effort(group: Sequence[Trajectory]) -> float:
    """Turns and hundreds of thinking tokens of a mean rollout (the heuristics of Composer 2's report, section 4)."""
    return sum(t.effort.turns + t.effort.thinking_tokens / 100 for t in group) / max(1, len(group))


class Curriculum:
    """What is believed about tasks by feature. Deterministic: the same groups in the same order, the same choices."""

    def __init__(self, settings: CurriculumSettings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._seen: dict[str, _Seen] = {}
        self._all = _Seen()
        self._rated: dict[str, _Seen] = {}

    def set_prior(self, task: Task, rating: Rating) -> None:
        """What a policy was rated at on ``task`` before the run; it counts like one more feature."""
        effort = (rating.turns + rating.thinking_tokens / 100) * rating.rollouts
        self._rated[task.name] = _Seen(rating.solved, rating.rollouts - rating.solved, effort)

    def update(self, task: Task, group: Sequence[Trajectory], version: int) -> None:
        """A graded group, sampled by ``version`` of the policy."""
        graded = [t for t in group if t.outcome is not None]
        solved = sum(1 for t in graded if t.outcome is not None and t.outcome.resolved)
        for seen in (self._all, *(self._seen.setdefault(f, _Seen()) for f in features(task))):
            keep = 0.5 ** (max(0, version - seen.version) / self.settings.half_life)
            seen.solved = seen.solved * keep + solved
            seen.failed = seen.failed * keep + len(graded) - solved
            seen.effort = seen.effort * keep + group_effort(graded) * len(graded)
            seen.version = max(seen.version, version)

    def choose(self, unused: Sequence[Task], position: int, progress: float) -> Task:
        """One of ``unused``, which is not empty. ``position`` numbers the choice; ``progress`` is the share of the run
        that is over: what takes more effort weighs more towards its end."""
        rng = random.Random(f"curriculum-{self.seed}-{position}")
        some = rng.sample(unused, min(len(unused), self.settings.candidates))
        weights = [self._weight(task, rng, progress) for task in some]
        return rng.choices(some, weights)[0]

    def _weight(self, task: Task, rng: random.Random, progress: float) -> float:
        known = [seen for f in features(task) if (seen := self._seen.get(f)) is not None and seen.rollouts]
        known += [self._rated[task.name]] if task.name in self._rated else []
        # What each feature adds to the log odds of all tasks: one that says nothing of its own adds nothing.
        base = _logit(self._prior)
        p = _sigmoid(base + sum(_logit(self._draw(seen, rng)) - base for seen in known)) if known else rng.random()
        harder = 0.0
        if known and self._all.effort:
            mean = self._all.effort / self._all.rollouts
            harder = sum(seen.effort / seen.rollouts for seen in known) / len(known) / mean - 1
        return max(1e-3, p * (1 - p)) * max(0.1, 1 + self.settings.harder * progress * harder)

    def _draw(self, seen: _Seen, rng: random.Random) -> float:
        """From the Beta distribution of a feature's pass rate. Rollouts of one group are alike, so a group counts as
        ``group_weight`` rollouts; the rate over all tasks is the prior, worth two of those."""
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
    """What an earlier start of the run had learned."""
    for task, group, version in groups:
        curriculum.update(task, group, version)
