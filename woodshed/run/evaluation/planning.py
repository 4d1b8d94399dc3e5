"""``woodshed evaluate plan``: number of tasks and samples needed to detect a difference, from assumptions or an earlier
evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from woodshed.evaluate.power import Spread, assumed_spread, detectable, measured_spread, noise_floor, tasks_needed

from .plan import EvaluationFolder
from .policies import EvaluationError
from .results import read_results

SAMPLES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class PlannedRow:
    """``tasks`` with ``samples`` each suffice to detect the wanted difference. ``noise_floor``: standard deviation of
    the difference between two evaluations of one policy on that many tasks. ``detectable``: smallest difference that
    the available tasks can show, None if their number was not given."""

    samples: int
    tasks: int
    episodes: int
    noise_floor: float
    detectable: float | None


@dataclass(frozen=True)
class SamplePlan:
    """A table of ``rows``; ``origin``: where the variances come from."""

    difference: float
    power: float
    spread: Spread
    origin: str
    rows: tuple[PlannedRow, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """Return the text below the table."""
        cheapest = min(self.rows, key=lambda row: row.episodes)
        return (
            f"To see {self.difference:+g} in pass@1 with probability {self.power:g} (95 % interval), {self.origin}: "
            f"{cheapest.tasks} tasks with {cheapest.samples} samples cost the fewest episodes of each policy.\n"
            f"Standard deviation over tasks of the difference: {math.sqrt(self.spread.between):.3f}; more samples do "
            f"not reduce it, more tasks do. Sampling variance of a pair of samples: {self.spread.within:.3f}."
        )


def spread_from(
    folder: Path | None, *, rate: float, task_sd: float, difference: float, difference_sd: float
) -> tuple[Spread, str]:
    """Return (variance components, their origin in words), from the evaluation in ``folder`` or, if it is None, from
    the assumptions. Raises EvaluationError, ValueError."""
    if folder is None:
        spread = assumed_spread(rate, task_sd, difference, difference_sd)
        return spread, f"assuming pass@1 {rate:g} and the standard deviations {task_sd:g} and {difference_sd:g}"
    results = read_results(EvaluationFolder(folder))
    if results is None:
        raise EvaluationError(f"--from {folder}: no results.json of an evaluation there")
    return measured(results, str(folder))


def measured(results: Mapping[str, Any], where: str) -> tuple[Spread, str]:
    """Return variance components averaged over all pairs of policies of an evaluation (if there is only one policy, of
    it with itself), and their origin in words. Raises EvaluationError."""
    names = [policy["name"] for policy in results["policies"]]
    tasks = [by for suite in results["tasks"].values() for by in suite.values()]
    samples = {name: {i: _samples(by[name]) for i, by in enumerate(tasks) if name in by} for name in names}
    pairs: Sequence[tuple[str, str]] = list(combinations(names, 2)) or [(names[0], names[0])]
    found = []
    try:
        for one, other in pairs:
            both = sorted(samples[one].keys() & samples[other].keys())
            if one == other:  # a policy differs from itself only by sampling
                alone = measured_spread([samples[one][i] for i in both], [samples[other][i] for i in both])
                found.append(Spread(0.0, alone.within))
            else:
                found.append(measured_spread([samples[one][i] for i in both], [samples[other][i] for i in both]))
    except ValueError as error:
        raise EvaluationError(f"--from {where}: {error}") from None
    mean = Spread(sum(each.between for each in found) / len(found), sum(each.within for each in found) / len(found))
    if not (mean.between or mean.within):
        raise EvaluationError(
            f"--from {where}: all samples of every task agree, which says nothing about variances; plan from "
            "assumptions (--rate, --task-sd, --difference-sd)"
        )
    said = f"as measured in {where}" + ("" if len(names) > 1 else " (one policy: tasks are taken to gain alike)")
    return mean, said


def make_plan(source: tuple[Spread, str], *, difference: float, power: float, tasks: int = 0) -> SamplePlan:
    """Make a plan with one row for each number in ``SAMPLES``. ``source``: result of ``spread_from``; ``tasks``: number
    of available tasks, 0 if unknown. Raises ValueError for a difference of 0 or an impossible power."""
    spread, origin = source
    rows = []
    for samples in SAMPLES:
        needed = tasks_needed(difference, spread, samples, wanted=power)
        floor = noise_floor(spread.within / 2, needed, samples)
        shown = detectable(spread, tasks, samples, wanted=power) if tasks else None
        rows.append(PlannedRow(samples, needed, needed * samples, floor, shown))
    return SamplePlan(difference, power, spread, origin, tuple(rows))


def _samples(counts: Sequence[int]) -> list[bool]:
    solved, all_ = counts
    return [True] * solved + [False] * (all_ - solved)
