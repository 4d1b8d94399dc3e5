"""The numbers of a run for the final table, the report and the benchmarks, computed from its records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from woodshed.evaluate.run import group_name
from woodshed.evaluate.statistics import RATES, Estimate, bootstrap, paired_gain, pass_at_k
from woodshed.record.store import TrajectoryStore
from woodshed.record.visible import visible
from woodshed.rollout.attempts import attempt_rates, rate_if_fresh
from woodshed.rollout.failures import INFRA

EFFORT = ("turns", "sampled_tokens", "test_runs", "edits", "invalid_calls")
UNCOUNTED = ("test_runs", "edits")
"""Figures of ``EFFORT`` that are unknown for an agent program; its records hold 0."""


@dataclass
class Evaluation:
    """One evaluation: estimates over tasks, and statistics of the agent's behaviour."""

    name: str
    tasks: list[str]
    pass1_by_task: list[float]
    best_by_task: list[float]
    samples: int
    statuses: dict[str, int]
    effort: dict[str, float]
    first_attempts: float = float("nan")
    """Share of first attempts at a repair that passed (``rollout.attempts``)."""
    later_attempts: float = float("nan")
    """Share of all later attempts that passed."""
    later_if_fresh: float = float("nan")
    """Share of the later attempts that would pass if each were a first attempt (``rate_if_fresh``)."""
    kinds: dict[str, tuple[int, float]] = field(default_factory=dict)
    flagged: dict[str, int] = field(default_factory=dict)
    counts: list[tuple[int, int]] = field(default_factory=list)
    """Number of graded samples of each task, and number of those that are solved."""

    def best_of(self, samples: int) -> Evaluation:
        """Return this evaluation with best-of-k for k = ``samples``, at most its own: an evaluation that lost samples
        has a smaller k than another, and only figures of one k can be compared."""
        if samples == self.samples:
            return self
        return replace(self, samples=samples, best_by_task=[pass_at_k(n, c, samples) for n, c in self.counts])

    @property
    def most_samples(self) -> int:
        """Number of graded samples of a task that lost none. ``samples`` is that of the task that lost most."""
        return max((n for n, _ in self.counts), default=self.samples)

    @property
    def pass1(self) -> Estimate:
        return bootstrap(self.pass1_by_task, bounds=RATES)

    @property
    def best(self) -> Estimate:
        return bootstrap(self.best_by_task, bounds=RATES)

    @property
    def submitted(self) -> float:
        """Share of episodes that the agent ended itself, of those that no infrastructure error ended."""
        return self.statuses.get("submitted", 0) / sum(n for status, n in self.statuses.items() if status != INFRA)


def evaluation(store: TrajectoryStore, name: str, kinds: dict[str, str] | None = None) -> Evaluation | None:
    """Return the stored evaluation ``name``, or None if there is none. ``kinds``: kind of change by task name."""
    rows = store.rows(f"source = 'eval' AND group_id LIKE '{name}:%'")
    if not rows:
        return None
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["status"] != INFRA:  # says nothing about the policy
            by_task.setdefault(row["task"], []).append(row)
    if not by_task:
        return None
    tasks = sorted(by_task)
    graded = [row for task in tasks for row in by_task[task]]
    samples = min(len(by_task[t]) for t in tasks)
    solved = {t: sum(bool(r["resolved"]) for r in by_task[t]) for t in tasks}
    groups = sorted({row["group_id"] for row in graded})
    episodes = [[t.events for t in store.group(group) if t.status != INFRA] for group in groups]
    first, later = attempt_rates(events for of_task in episodes for events in of_task)
    by_kind: dict[str, list[float]] = {}
    for task in tasks:
        by_kind.setdefault((kinds or {}).get(task, ""), []).append(solved[task] / len(by_task[task]))
    return Evaluation(
        name=name,
        tasks=tasks,
        pass1_by_task=[solved[t] / len(by_task[t]) for t in tasks],
        best_by_task=[pass_at_k(len(by_task[t]), solved[t], samples) for t in tasks],
        samples=samples,
        statuses=dict(Counter(r["status"] for r in rows)),
        effort={key: float(np.mean([r["effort"][key] for r in graded])) for key in EFFORT},
        first_attempts=first,
        later_attempts=later,
        later_if_fresh=rate_if_fresh(episodes),
        kinds={k: (len(v), float(np.mean(v))) for k, v in sorted(by_kind.items()) if k},
        flagged=flagged(rows),
        counts=[(len(by_task[t]), solved[t]) for t in tasks],
    )


def flagged(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Return the number of episodes that each monitor flagged. ``rows``: rows of the store."""
    found = (row["labels"].get("flagged", "") for row in rows)
    return dict(Counter(name for text in found for name in text.split(",") if name))


def gains(before: Evaluation, after: Evaluation) -> tuple[Estimate, Estimate]:
    """Return the paired gains in pass@1 and best-of-k, over the tasks of both evaluations. k is that of the one with
    fewer samples."""
    samples = min(before.samples, after.samples)
    before, after = before.best_of(samples), after.best_of(samples)
    b = dict(zip(before.tasks, zip(before.pass1_by_task, before.best_by_task), strict=True))
    a = dict(zip(after.tasks, zip(after.pass1_by_task, after.best_by_task), strict=True))
    tasks = sorted(set(a) & set(b))
    return (
        paired_gain([b[t][0] for t in tasks], [a[t][0] for t in tasks], bounds=RATES),
        paired_gain([b[t][1] for t in tasks], [a[t][1] for t in tasks], bounds=RATES),
    )


def telling_pairs(
    store: TrajectoryStore, before: Evaluation, after: Evaluation, count: int = 3
) -> list[tuple[Any, Any]]:
    """Return (trajectory before, trajectory after) of the ``count`` tasks whose pass rate rose most, for people to
    read: a failed one before and a solved one after, if there are such."""
    b = dict(zip(before.tasks, before.pass1_by_task, strict=True))
    a = dict(zip(after.tasks, after.pass1_by_task, strict=True))
    ranked = sorted(set(a) & set(b), key=lambda t: (b[t] - a[t], t))
    pairs = []
    for task in ranked[:count]:
        left, right = (
            [t for t in store.group(group_name(of.name, task)) if t.status != INFRA] for of in (before, after)
        )
        first = [t for t in left if not (t.outcome and t.outcome.resolved)]
        second = [t for t in right if t.outcome and t.outcome.resolved]
        if left and right:
            pairs.append(((first or left)[0], (second or right)[0]))
    return pairs


class FindingsError(Exception):
    """There is nothing to show; the message says why."""


def print_findings(trajectories: Path, console: Console, *, only: Sequence[str] = (), show: int = 10) -> int:
    """Print a table of counts by source, then up to ``show`` flagged episodes with their findings. Return the number of
    flagged episodes. Raises FindingsError without trajectories."""
    if not trajectories.exists():
        raise FindingsError(f"{trajectories.parent}: no trajectories; give the directory of a run that has some")
    store = TrajectoryStore(trajectories)
    try:
        rows = {source: store.rows(f"source = '{source}'") for source in ("train", "eval", "live")}
        counts = {source: flagged(found) for source, found in rows.items()}
        names = sorted({n for c in counts.values() for n in c if not only or n in only})
        table = Table(title="episodes that monitors flagged")
        for column in ("monitor", *(f"{source} ({len(found)})" for source, found in rows.items() if found)):
            table.add_column(column)
        for name in names:
            table.add_row(name, *(str(counts[source].get(name, 0)) for source, found in rows.items() if found))
        if names:
            console.print(table)
        else:
            total = sum(map(len, rows.values()))
            console.print(f"nothing flagged in {total} episodes")
        wanted = set(names)
        hits = [r for found in rows.values() for r in found if wanted & set(r["labels"].get("flagged", "").split(","))]
        for row in hits[:show]:
            trajectory = next(t for t in store.group(row["group_id"]) if t.id == row["id"])
            verdict = "resolved" if row["resolved"] else "not resolved"
            console.print(Text(f"{row['id']}  {row['task']}  {verdict}", style="bold"), soft_wrap=True)
            for finding in trajectory.findings:
                if finding["monitor"] in wanted:
                    where = f"turn {finding['turn']}" if finding["turn"] > 0 else "whole"
                    shown = visible(f"  {finding['monitor']}, {where}: {finding['evidence']}")
                    console.print(Text(shown), soft_wrap=True)
        return len(hits)
    finally:
        store.close()
