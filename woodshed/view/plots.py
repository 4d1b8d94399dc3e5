"""Plots as inline SVG, so that the report is a single file that opens without a server."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    smooth: int = 1,
    band: tuple[Sequence[float], Sequence[float], Sequence[float]] | None = None,
    size: tuple[float, float] = (5.2, 2.8),
) -> str:
    """Draw curves by name, each (x values, y values), with their running means over ``smooth`` points in bold.
    ``x``, ``y``: names of the axes. ``band``: x values, lower and upper edge of an area behind the curves."""
    figure, axis = _figure(size)
    if band is not None:
        axis.fill_between(*band, color="tab:green", alpha=0.2, linewidth=0)
    for given, (xs, ys) in series.items():
        name, values = _literal(given), np.asarray(ys, float)
        (line,) = axis.plot(
            xs, values, alpha=0.3 if smooth > 1 else 1.0, linewidth=1, label=None if smooth > 1 else name
        )
        if smooth > 1 and len(values):
            width = min(smooth, len(values))
            padded = np.concatenate([[np.nan] * (width - 1), np.convolve(values, np.ones(width) / width, "valid")])
            axis.plot(xs, padded, color=line.get_color(), linewidth=2, label=name)
    if x == "step":
        axis.xaxis.get_major_locator().set_params(integer=True)
    _label(axis, y, x)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


def bars(groups: Mapping[str, Mapping[str, float]], *, y: str, size: tuple[float, float] = (5.2, 2.8)) -> str:
    """Draw grouped bars: {series: {label: value}}."""
    figure, axis = _figure(size)
    labels = sorted({label for values in groups.values() for label in values})
    width = 0.8 / max(1, len(groups))
    for i, (given, values) in enumerate(groups.items()):
        positions = np.arange(len(labels)) + (i - (len(groups) - 1) / 2) * width
        axis.bar(positions, [values.get(label, 0.0) for label in labels], width, label=_literal(given))
    axis.set_xticks(np.arange(len(labels)), list(map(_literal, labels)), rotation=25, ha="right", fontsize=8)
    _label(axis, y)
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure)


def _literal(text: str) -> str:
    """Shorten and escape text so that matplotlib shows it literally: it would typeset text between dollar signs as
    mathematics, and hide labels that begin with an underscore. Tool names are chosen by a policy or program, so they
    can be any text."""
    short = text if len(text) <= 24 else f"{text[:23]}…"
    return ("\u200b" if short.startswith("_") else "") + short.replace("$", r"\$")


def scatter(
    points: Mapping[str, tuple[float, float]],
    front: Sequence[str],
    *,
    x: str,
    y: str,
    size: tuple[float, float] = (5.2, 2.8),
) -> str:
    """Draw named points (x, y), with a step line through those of a Pareto ``front`` (names, in order of x). Names are
    in a legend at the side, because points may be close together or coincide."""
    figure, axis = _figure(size)
    if front:
        axis.step([points[n][0] for n in front], [points[n][1] for n in front], where="post", color="0.7", zorder=0)
    for number, (name, (across, up)) in enumerate(points.items()):
        marker, filled = _MARKERS[number % len(_MARKERS)], name in front
        color = f"C{number % 10}"
        axis.plot([across], [up], marker, color=color, mfc=color if filled else "none", ms=7, label=_literal(name))
    axis.margins(0.15)
    _label(axis, y, x)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return _svg(figure)


_MARKERS = "osD^v<>Pp*"


def _label(axis: Any, y: str, x: str = "") -> None:
    """Label both axes: the vertical one above it, where there is room for long names."""
    axis.set_title(y, loc="left", fontsize=9)
    axis.set_xlabel(x, fontsize=9)


def _figure(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axis = figure.add_subplot()
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    return figure, axis


def _svg(figure: Any) -> str:
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.hashsalt": "woodshed"}):  # the same numbers give the same file
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]
