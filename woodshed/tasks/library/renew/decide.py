"""What the ratings of a task say about it: by its interval, never by the point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from woodshed.record.history import History
from woodshed.tasks.library.difficulty import Share, ever_solved

Finding = Literal["unrated", "too easy", "unsolved", "teaches", "undecided"]


@dataclass(frozen=True)
class Limits:
    """A task is too easy where the 95 % interval of the newest policy's pass rate lies above ``too_easy``; unsolved
    where nobody solved it in ``unsolved`` rollouts of all policies together."""

    too_easy: float = 0.6
    unsolved: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.too_easy < 1:
            raise ValueError(f"too_easy must lie between 0 and 1, got {self.too_easy}")
        if self.unsolved < 1:
            raise ValueError(f"unsolved must be at least 1 rollout, got {self.unsolved}")


def newest(history: History) -> tuple[str, Share]:
    """(the policy that rated last and its version, its rollouts). ValueError without a rating."""
    last = max(history.ratings, key=lambda r: r.date)
    same = [r for r in history.ratings if (r.policy, r.version) == (last.policy, last.version)]
    share = Share(sum(r.solved for r in same), sum(r.rollouts for r in same))
    return f"{last.policy} version {last.version}", share


def find(history: History, limits: Limits) -> tuple[Finding, str]:
    """What holds, and the evidence for it in words. ``undecided``: more rollouts would decide."""
    if not history.ratings:
        return "unrated", ""
    who, share = newest(history)
    everybody = ever_solved(history)
    if share.interval[0] > limits.too_easy:
        return "too easy", f"{who} solved {share}"
    if not everybody.count:
        if everybody.of >= limits.unsolved:
            return "unsolved", f"nobody solved it: {everybody}"
        return "undecided", f"{who} solved {share}"
    if share.count == share.of:
        return "undecided", f"{who} solved {share}"
    return "teaches", f"{who} solved {share}"
