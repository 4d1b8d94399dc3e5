"""Expected learning curves of a recipe: made from finished runs, shipped with the recipe, compared with a running one.

``recipes/NAME.expected.json`` has a band for each curve: the range of the smoothed values of a healthy run. A run of
the same recipe (any seed) that leaves a band has changed behaviour, for better or worse; a value that is not a number
is always wrong.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodshed.record.jsonl import read_jsonl

from .plots import lines

CURVES: dict[str, tuple[str, str, float]] = {
    "pretraining loss": ("pretrain", "loss", 0.05),
    "SFT loss": ("sft", "loss", 0.05),
    "pass rate": ("rollouts", "pass_rate", 0.15),
    "reward": ("rollouts", "reward_mean", 0.15),
    "entropy": ("trainer", "entropy", 0.1),
    "effective sample size": ("trainer", "ess", 0.1),
}
"""Curve -> (metrics file of the run, field of its lines, minimum half-width of its band). The x axis is the line's
``step``."""

MOST_POINTS = 40
SECTIONS = ("policy", "tasks", "learn", "harness", "rl", "train")
"""Parts of a recipe that determine its curves. ``seed`` and everything else may differ."""


class ExpectedError(ValueError):
    """The expected curves cannot be made or read; the message names the file and says what to do."""


@dataclass(frozen=True)
class Band:
    """Steps and, at each, the lowest and highest value expected of the mean over the last ``window`` values."""

    window: int
    steps: list[int]
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Departure:
    """A smoothed value outside its band, or a value that is not a number (``band`` is None then)."""

    curve: str
    step: int
    value: float
    band: tuple[float, float] | None

    def __str__(self) -> str:
        if self.band is None:
            return f"{self.curve} is {self.value} at step {self.step}"
        low, high = self.band
        return f"{self.curve} {self.value:.3g} at step {self.step}, expected {low:.3g} to {high:.3g}"


@dataclass(frozen=True)
class Expected:
    """Content of ``NAME.expected.json``. ``minutes``: duration of each run, on ``hardware``. ``figures``: for
    people."""

    recipe: str
    digest: str
    seeds: list[int]
    hardware: str
    commit: str
    minutes: list[float]
    figures: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Band] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Expected:
        """Load a file. Raises FileNotFoundError, and ExpectedError for a file of another form."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            curves = {str(name): Band(**band) for name, band in data.pop("curves").items()}
            return Expected(**data, curves=curves)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ExpectedError(
                f"{path}: not a file of expected curves ({error}); make it again with `woodshed expect`"
            ) from None

    def departures(self, root: Path) -> list[Departure]:
        """Return, for each curve of the run in ``root``, its first value that is not a number, else the first smoothed
        value outside its band, if any."""
        found = []
        for name, band in self.curves.items():
            steps, values = read_curve(root, name)
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                found.append(Departure(name, int(steps[bad[0]]), float(values[bad[0]]), None))
                continue
            smooth = smoothed(values, band.window)
            at = {int(step): float(value) for step, value in zip(steps, smooth, strict=True)}
            for step, low, high in zip(band.steps, band.low, band.high, strict=True):
                if step in at and not low <= at[step] <= high:
                    found.append(Departure(name, step, at[step], (low, high)))
                    break
        return found


def digest_of(recipe: Mapping[str, Any]) -> str:
    """Return the digest of everything in ``recipe`` that determines its curves, which alarms do not. ``recipe``:
    ``model_dump(mode="json", exclude_defaults=True)``, so that new settings with a default change nothing."""
    chosen = {name: recipe.get(name) for name in SECTIONS}
    if chosen["rl"] is not None:
        chosen["rl"] = {name: value for name, value in chosen["rl"].items() if name != "alarms"}
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def read_curve(root: Path, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return (steps, values) of a run so far; a step that was repeated after a kill counts with its last value."""
    file, key, _ = CURVES[name]
    rows = {int(row["step"]): _number(row[key]) for row in read_jsonl(root / "metrics" / f"{file}.jsonl") if key in row}
    steps = sorted(rows)
    return np.array(steps, np.int64), np.array([rows[step] for step in steps], np.float64)


def smoothed(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Return the running mean over the last ``window`` values (fewer at the beginning); nan for windows with a value
    that is not finite."""
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)

    def summed(each: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.concatenate(([0.0], np.cumsum(each)))
        return sums[ends] - sums[starts]

    finite = np.isfinite(values)
    means = summed(np.where(finite, values, 0.0)) / (ends - starts)
    return np.where(summed((~finite).astype(np.float64)) == 0, means, np.nan)


def band_of(runs: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]], least: float) -> Band | None:
    """Return the band of one curve over several runs, (steps, values) each; None if they have no step in common.

    The band is centred on the mean of the smoothed runs. Its half-width is 1.5 times their largest distance from the
    mean plus four standard errors of a smoothed value (the noise of a single value is estimated from differences of
    neighbours), at least ``least``. Raises ExpectedError for a value that is not a number.
    """
    shared = sorted(set.intersection(*(set(map(int, steps)) for steps, _ in runs)))
    if not shared:
        return None
    window = max(1, min(10, len(shared) // 5)) if len(shared) < 200 else len(shared) // 20
    kept = shared[window - 1 :: max(1, len(shared) // MOST_POINTS)]
    lines, noise = [], []
    for steps, values in runs:
        if not np.isfinite(values).all():
            raise ExpectedError("a run has values that are not numbers; it is no example of a healthy one")
        smooth = dict(zip(map(int, steps), smoothed(values, window), strict=True))
        lines.append([smooth[step] for step in kept])
        noise.append(float(np.std(np.diff(values))) / math.sqrt(2) if len(values) > 2 else 0.0)
    lines_RS = np.array(lines)
    middle_S = lines_RS.mean(0)
    room_S = 1.5 * np.abs(lines_RS - middle_S).max(0) + 4 * float(np.mean(noise)) / math.sqrt(window)
    room_S = np.maximum(room_S, least)
    return Band(window, kept, _rounded(middle_S - room_S), _rounded(middle_S + room_S))


def expected_of(
    roots: Sequence[Path],
    *,
    recipe: str,
    digest: str,
    seeds: Sequence[int],
    hardware: str,
    commit: str,
    minutes: Sequence[float],
    figures: Mapping[str, Any] | None = None,
) -> Expected:
    """Return the expected curves from finished runs of one recipe. Raises ExpectedError for fewer than two runs."""
    if len(roots) < 2:
        raise ExpectedError("one run says nothing about how much runs differ; give at least two, with different seeds")
    curves = {}
    for name in CURVES:
        band = band_of([read_curve(root, name) for root in roots], CURVES[name][2])
        if band is not None:
            curves[name] = band
    return Expected(recipe, digest, list(seeds), hardware, commit, list(minutes), dict(figures or {}), curves)


def expected_section(root: Path, expected: Expected | None) -> str:
    """Return HTML for the report: the run's curves over their bands; '' if its recipe has no expected curves."""
    if expected is None:
        return ""
    found = expected.departures(root)
    seeds = ", ".join(map(str, expected.seeds))
    said = "".join(f"<li>{html.escape(str(departure))}</li>" for departure in found)
    verdict = f"<ul class='bad'>{said}</ul>" if found else "<p>No curve left its band.</p>"
    plots = []
    for name, band in expected.curves.items():
        steps, values = read_curve(root, name)
        if len(steps):
            area = (band.steps, band.low, band.high)
            curve = (list(map(float, steps)), list(map(float, values)))
            plots.append(lines({name: curve}, x="step", y=name, smooth=band.window, band=area))
    drawn = "".join(f"<div class=half>{plot}</div>" for plot in plots)
    where = f"Bands of seeds {seeds} on {html.escape(expected.hardware)}, commit {html.escape(expected.commit)}."
    return f"<h2>Beside what is expected</h2>{verdict}<p><small>{where}</small></p><div class=row>{drawn}</div>"


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
