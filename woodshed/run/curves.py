"""The curves of a run compared with those expected of its recipe: drawn on the screen, with a notice when one leaves
its expected band."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from woodshed.evaluate.arms import split_round
from woodshed.recipe.load import BUILTIN
from woodshed.recipe.recipe import Recipe
from woodshed.view.expected import Expected, digest_of, read_curve, smoothed

STAGE_CURVES = {"pretrain": "pretraining loss", "sft": "SFT loss", "rl": "pass rate"}
"""Curve that is drawn while a stage runs, by stage."""
_SECONDS = 5.0
_LEVELS = "▁▂▃▄▅▆▇█"
_UNKNOWN = "×"
"""Mark of a value that is not a number."""


def expected_curves(recipe: Recipe) -> Expected | None:
    """Return the expected curves of this recipe; None if none are shipped, or the recipe was changed where it matters.

    Raises ExpectedError for a damaged file.
    """
    path = BUILTIN / f"{recipe.name}.expected.json"
    if not path.exists():
        return None
    found = Expected.load(path)
    return found if found.digest == digest_of(recipe.model_dump(mode="json", exclude_defaults=True)) else None


def _mark(height: float) -> str:
    """Return the mark of a height between 0 and 1."""
    return _LEVELS[round(height * (len(_LEVELS) - 1))] if np.isfinite(height) else _UNKNOWN


class CurveWatch:
    """Follows the metrics of the run in ``root``. ``expected``: the expected bands; with None, curves are drawn without
    a band."""

    def __init__(self, root: Path, expected: Expected | None) -> None:
        self.root, self.expected = root, expected
        self._told: set[str] = set()
        self._next = 0.0
        self._drawn: dict[str, tuple[float, str]] = {}

    def news(self, *, now: bool = False) -> list[str]:
        """Return one sentence for each curve that has newly left its band. Reads the metrics every few seconds, or at
        once with ``now``."""
        if self.expected is None or (not now and time.monotonic() < self._next):
            return []
        self._next = time.monotonic() + _SECONDS
        fresh = [d for d in self.expected.departures(self.root) if d.curve not in self._told]
        self._told |= {departure.curve for departure in fresh}
        return [f"{departure} ({self.expected.recipe}.expected.json)" for departure in fresh]

    def drawn(self, stage: str, width: int = 24) -> str:
        """Return the curve of a stage as one line of text, with its newest value and band; '' if there is none yet.

        A screen asks several times a second; the metrics are read only every few seconds.
        """
        due, text = self._drawn.get(stage, (0.0, ""))
        if time.monotonic() >= due:
            text = self._draw(stage, width)
            self._drawn[stage] = (time.monotonic() + _SECONDS, text)
        return text

    def _draw(self, stage: str, width: int) -> str:
        name = STAGE_CURVES.get(split_round(stage)[0])
        if name is None:
            return ""
        steps, values = read_curve(self.root, name)
        if len(values) < 2:
            return ""
        band = self.expected.curves.get(name) if self.expected is not None else None
        smooth = smoothed(values, band.window if band else max(1, len(values) // 20))
        shown = smooth[:: max(1, -(-len(smooth) // width))]
        known = shown[np.isfinite(shown)]
        low, high = float(known.min(initial=np.inf)), float(known.max(initial=-np.inf))
        marks = "".join(_mark((v - low) / (high - low or 1.0)) for v in shown.tolist())
        text = f"{name} {marks} {smooth[-1]:.3g}"
        if band is not None:
            last = max((i for i, step in enumerate(band.steps) if step <= steps[-1]), default=None)
            if last is not None:
                text += f" (expected {band.low[last]:.3g} to {band.high[last]:.3g})"
        return text
