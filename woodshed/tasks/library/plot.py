"""The distributions of ``woodshed tasks stats`` as a picture."""

from __future__ import annotations

from pathlib import Path

from .published import BENCHMARKS
from .statistics import Statistics


def draw(statistics: Statistics, path: Path) -> None:
    """Histograms of changed lines and prompt length, with published medians as lines. ValueError for a file type that
    cannot be written, OSError where the file cannot be."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = (("changed_lines", "changed lines"), ("prompt", "characters of prompt"))
    for axes, (measure, title) in zip(figure.subplots(1, 2), panels):
        values = [max(1, getattr(s, measure)) for s in statistics.sizes]
        published = [(b.name, b.changed_lines if measure == "changed_lines" else b.prompt_chars) for b in BENCHMARKS]
        ends = [(name, [float(v) for v in text.split("-")]) for name, text in published]
        low, high = min([*values, *(v[0] for _, v in ends)]), max([*values, *(v[-1] for _, v in ends)])
        edges = [low * (high / low) ** (i / 24) for i in range(25)] if high > low else [low * 0.5, low * 2]
        axes.hist(values, bins=edges, color="0.6")
        for (name, bounds), colour in zip(ends, ("tab:blue", "tab:red")):
            if len(bounds) == 2:
                axes.axvspan(*bounds, color=colour, alpha=0.25, label=f"{name} (medians)")
            else:
                axes.axvline(bounds[0], color=colour, label=f"{name} (median)")
        axes.set(xscale="log", xlabel=title, ylabel="tasks")
        axes.legend(fontsize=7)
    figure.savefig(path)
