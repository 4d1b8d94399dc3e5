"""Several policies on the same tasks: scores, paired differences, costs, the Pareto front. Numbers only, no files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .axes import bounds_of
from .statistics import RATES, Estimate, bootstrap, paired_gain, pass_at_k

TaskKey = tuple[str, str]
"""(suite, task)."""
AXES = ("tokens", "turns", "seconds")
"""Costs that a score is compared with; each is a mean per episode."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens: ``context`` that the model reads, and ``sampled`` tokens."""

    context: float
    sampled: float

    def of(self, episode: EvaluatedEpisode) -> float:
        """Return the price of an episode in dollars if the server caches prefixes, so that each context token is paid
        once."""
        return (self.context * episode.context_tokens + self.sampled * episode.sampled_tokens) / 1e6


@dataclass(frozen=True)
class EvaluatedEpisode:
    """One finished episode. ``resolved``: None if an infrastructure error ended it. ``scored``: the task counts for
    scores. ``cheated``: None if cheating is not judged on the task. ``axes``: values by axis (``axes.py``), without
    axes that do not apply to the episode."""

    id: str
    suite: str
    task: str
    resolved: bool | None
    status: str
    turns: int
    sampled_tokens: int
    context_tokens: int
    seconds: float
    scored: bool = True
    cheated: bool | None = None
    reasons: tuple[str, ...] = ()
    flagged: tuple[str, ...] = ()
    axes: Mapping[str, float] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.sampled_tokens + self.context_tokens


@dataclass(frozen=True)
class PolicyEpisodes:
    """All episodes of one policy. ``planned``: number of episodes of a complete evaluation. ``strict``: for a policy
    that had a network, name of the same policy without one."""

    name: str
    source: str
    harness_hash: str
    episodes: Sequence[EvaluatedEpisode]
    planned: int
    temperature: float = math.nan
    tried: Mapping[float, float] = field(default_factory=dict)
    price: Price | None = None
    strict: str = ""

    def samples(self) -> dict[TaskKey, list[bool]]:
        """Return the outcomes of the scored tasks. Infrastructure errors say nothing about the policy and are left
        out."""
        found: dict[TaskKey, list[bool]] = defaultdict(list)
        for episode in self.episodes:
            if episode.scored and episode.resolved is not None:
                found[episode.suite, episode.task].append(episode.resolved)
        return dict(found)

    def by_axis(self, suite: str | None = None) -> dict[str, dict[TaskKey, float]]:
        """Return by axis and task the mean over the episodes that have a value, of one suite or (None) all."""
        values: dict[str, dict[TaskKey, list[float]]] = defaultdict(lambda: defaultdict(list))
        for episode in self.episodes:
            if episode.resolved is not None and suite in (None, episode.suite):
                for axis, value in episode.axes.items():
                    values[axis][episode.suite, episode.task].append(value)
        return {axis: {key: _mean(each) for key, each in tasks.items()} for axis, tasks in values.items()}


@dataclass(frozen=True)
class Score:
    """Statistics of a policy on some episodes. Means of tokens, turns, seconds and dollars are per episode without an
    infrastructure error, nan without any; ``dollars`` is None without a price. ``pass_at``: unbiased pass@k by k, over
    the tasks with k samples or more. ``axes``: mean over the tasks that have a value, by axis."""

    tasks: int
    episodes: int
    infra_errors: int
    pass1: Estimate
    pass_at: dict[int, float]
    submitted: float
    tokens: float
    sampled_tokens: float
    turns: float
    seconds: float
    dollars: float | None
    judged: int
    cheats: int
    reasons: dict[str, int]
    flagged: dict[str, int]
    axes: dict[str, Estimate]

    @property
    def infra_rate(self) -> float:
        return self.infra_errors / self.episodes if self.episodes else math.nan

    @property
    def cheat_rate(self) -> float:
        return self.cheats / self.judged if self.judged else math.nan

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "pass_at": {str(k): value for k, value in self.pass_at.items()},
            "infra_rate": self.infra_rate,
            "cheat_rate": self.cheat_rate,
        }


@dataclass(frozen=True)
class Difference:
    """pass@1 of ``policy`` minus that of ``baseline``, on the ``tasks`` of which both have samples. ``gain``: None if
    nothing is compared; ``note`` then says why. With a gain, ``note`` has caveats. ``axes``: the same difference by
    axis."""

    policy: str
    baseline: str
    tasks: int
    gain: Estimate | None
    note: str = ""
    axes: Mapping[str, Estimate] = field(default_factory=dict)


def score(policy: PolicyEpisodes, suite: str | None = None, *, seed: int = 0) -> Score:
    """Return the statistics of a policy on one suite, or (None) on all of them, with equal weight for every task."""
    chosen = [e for e in policy.episodes if suite in (None, e.suite)]
    ended = [e for e in chosen if e.resolved is not None]
    samples = [passed for (of, _), passed in policy.samples().items() if suite in (None, of)]
    most = max(map(len, samples), default=0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128) if k <= most]
    judged = [e for e in ended if e.cheated is not None]
    price = policy.price
    return Score(
        tasks=len(samples),
        episodes=len(chosen),
        infra_errors=len(chosen) - len(ended),
        pass1=bootstrap([sum(passed) / len(passed) for passed in samples], bounds=RATES, seed=seed),
        pass_at={k: _mean(pass_at_k(len(p), sum(p), k) for p in samples if len(p) >= k) for k in ks},
        submitted=_mean(e.status == "submitted" for e in ended),
        tokens=_mean(e.tokens for e in ended),
        sampled_tokens=_mean(e.sampled_tokens for e in ended),
        turns=_mean(e.turns for e in ended),
        seconds=_mean(e.seconds for e in ended),
        dollars=_mean(price.of(e) for e in ended) if price is not None else None,
        judged=len(judged),
        cheats=sum(bool(e.cheated) for e in judged),
        reasons=dict(Counter(reason for e in judged for reason in e.reasons)),
        flagged=dict(Counter(name for e in ended for name in e.flagged)),
        axes={
            axis: bootstrap(list(tasks.values()), bounds=bounds_of(axis), seed=seed)
            for axis, tasks in policy.by_axis(suite).items()
        },
    )


def difference(
    policy: PolicyEpisodes, baseline: PolicyEpisodes, *, seed: int = 0, across_harnesses: bool = False
) -> Difference:
    """Compare two policies, paired by task and resampled by task.

    Policies in different harnesses are not compared unless ``across_harnesses``; the note then says so.
    """
    note = ""
    if policy.harness_hash != baseline.harness_hash:
        note = f"different harnesses ({policy.harness_hash[:8]}, {baseline.harness_hash[:8]})"
        if not across_harnesses:
            return Difference(policy.name, baseline.name, 0, None, f"{note}: not compared")
    mine, other = policy.samples(), baseline.samples()
    both = [key for key in other if key in mine]
    axes = _axis_differences(policy.by_axis(), baseline.by_axis(), seed)
    if not both:
        return Difference(policy.name, baseline.name, 0, None, "no task has samples of both", axes)
    left = len(mine.keys() | other.keys()) - len(both)
    if left:
        note = "; ".join(filter(None, (note, f"{left} tasks have samples of one of them only")))
    rates = [[sum(of[key]) / len(of[key]) for key in both] for of in (other, mine)]
    gain = paired_gain(*rates, bounds=RATES, seed=seed)
    return Difference(policy.name, baseline.name, len(both), gain, note, axes)


def _axis_differences(
    mine: Mapping[str, Mapping[TaskKey, float]], other: Mapping[str, Mapping[TaskKey, float]], seed: int
) -> dict[str, Estimate]:
    """Return the differences ``mine`` - ``other`` by axis, paired over the tasks that have a value in both."""
    found = {}
    for axis in sorted(mine.keys() & other.keys()):
        if both := [key for key in other[axis] if key in mine[axis]]:
            rates = [[of[axis][key] for key in both] for of in (other, mine)]
            found[axis] = paired_gain(*rates, bounds=bounds_of(axis), seed=seed)
    return found


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the non-dominated points (cost, score), in order of cost. A point is dominated if another one
    is at most as costly and at least as good, and better in one of the two. Points with a nan are left out."""
    known = {name: point for name, point in points.items() if not any(map(math.isnan, point))}

    def beaten(name: str) -> bool:
        cost, value = known[name]
        return any(c <= cost and v >= value and (c, v) != (cost, value) for c, v in known.values())

    return sorted((name for name in known if not beaten(name)), key=lambda name: known[name])


def fronts(scores: Mapping[str, Score]) -> dict[str, list[str]]:
    """Return, for each of ``AXES``, the policies on the Pareto front of pass@1 against this cost."""
    of: dict[str, Callable[[Score], float]] = {
        "tokens": lambda s: s.tokens,
        "turns": lambda s: s.turns,
        "seconds": lambda s: s.seconds,
    }
    return {
        axis: pareto_front({name: (of[axis](each), each.pass1.mean) for name, each in scores.items()}) for axis in AXES
    }


def _mean(values: Iterable[float]) -> float:
    listed = [float(value) for value in values]
    return sum(listed) / len(listed) if listed else math.nan
