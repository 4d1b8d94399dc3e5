"""Difficulty of tasks for policies, with confidence intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from woodshed.record.history import History, Rating

_Z = 1.959964
"""Quantile of the normal distribution for a 95 % interval."""


@dataclass(frozen=True)
class Share:
    """``count`` successes in ``of`` trials, as an estimate of a probability with its 95 % interval."""

    count: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's score interval (Wilson 1927), which stays within 0 and 1; (0, 1) without trials."""
        if not self.of:
            return 0.0, 1.0
        p, z2 = self.count / self.of, _Z * _Z
        middle = p + z2 / (2 * self.of)
        half = _Z * sqrt(p * (1 - p) / self.of + z2 / (4 * self.of * self.of))
        scale = 1 + z2 / self.of
        return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)

    def __str__(self) -> str:
        if not self.of:
            return "none of none"
        low, high = self.interval
        return f"{self.count} of {self.of}, {self.count / self.of:.2f} [{low:.2f}, {high:.2f}]"


def solved(rating: Rating) -> Share:
    """Share of the rollouts of a rating that solved the task."""
    return Share(rating.solved, rating.rollouts)


def rated_policy(rating: Rating) -> tuple[str, int, str, str]:
    """Return what tells the policies of two ratings apart: name, version, kind and checkpoint.

    Of one run, baselines and a result fine-tuned on what RL solved have version 0, as the policy that RL starts from.
    """
    return rating.policy, rating.version, rating.kind, rating.checkpoint


def ever_solved(history: History) -> Share:
    """Share of the rollouts of all policies together that solved the task."""
    return Share(sum(r.solved for r in history.ratings), sum(r.rollouts for r in history.ratings))


def lines_of(history: History) -> list[str]:
    """One line for each rating, oldest first, then the mark, if there is one."""
    lines = [
        f"{r.date[:10]}  {r.policy} version {r.version} ({r.kind}): {solved(r)} solved; {r.turns:.1f} turns, "
        f"{r.thinking_tokens:.0f} thinking tokens"
        for r in history.ratings
    ]
    mark = history.mark
    if mark is not None:
        lines.append(f"{mark.date[:10]}  {mark.status}: {mark.why}")
        lines += [f"            hardened as {name}" for name in mark.hardened]
    return lines


@dataclass(frozen=True)
class Spread:
    """Shares of the tasks that one policy (``rated_policy``) never, sometimes and always solved."""

    policy: str
    version: int
    kind: str
    rollouts: int
    never: Share
    sometimes: Share
    always: Share

    def __str__(self) -> str:
        name = f"{self.policy} version {self.version} ({self.kind})"
        return (
            f"{name}: {self.rollouts} rollouts on {self.never.of} tasks; solved never {self.never}; "
            f"sometimes {self.sometimes}; always {self.always}"
        )


def spread(histories: Iterable[History]) -> list[Spread]:
    """Return the spread of each policy, in order of rating. Tasks are counted, because rollouts of the same task are
    alike."""
    found: dict[tuple[str, int, str, str], list[Sequence[Rating]]] = {}
    for history in histories:
        by_policy: dict[tuple[str, int, str, str], list[Rating]] = {}
        for rating in history.ratings:
            by_policy.setdefault(rated_policy(rating), []).append(rating)
        for key, ratings in by_policy.items():
            found.setdefault(key, []).append(ratings)
    return [_spread(tasks) for tasks in found.values()]


def _spread(tasks: Sequence[Sequence[Rating]]) -> Spread:
    kinds: Counter[str] = Counter()
    for ratings in tasks:
        done, tried = sum(r.solved for r in ratings), sum(r.rollouts for r in ratings)
        kinds["never" if not done else "always" if done == tried else "sometimes"] += 1
    rollouts = sum(r.rollouts for ratings in tasks for r in ratings)
    shares = (Share(kinds[kind], len(tasks)) for kind in ("never", "sometimes", "always"))
    one = tasks[0][0]
    return Spread(one.policy, one.version, one.kind, rollouts, *shares)
