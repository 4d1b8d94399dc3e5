"""Draw plots of the committed results: ``python benchmarks/plots.py`` writes docs/plots/*.svg.

docs/results.md shows them. A result that does not exist yet is left out.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from result import RESULTS

from woodshed.view.plots import lines

OUT = Path(__file__).parent.parent / "docs" / "plots"
Interval = Mapping[str, float]
"""``mean``, ``low`` and ``high``."""


def baselines(result: dict[str, Any]) -> str:
    """Plot the held-out pass@1 of every policy of each seed, at its best temperature."""
    rows = {
        f"{seed}: {name}": arm["pass1"]
        for seed, found in result["detail"].items()
        for name, arm in found["policies"].items()
    }
    return forest(rows, "held-out pass@1")


def rounds(result: dict[str, Any]) -> str:
    """Plot the held-out pass@1 and best-of-k after each round of every seed, with the interval of pass@1, and the best
    baseline as a horizontal line."""
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.add_subplot()
    for colour, (seed, found) in enumerate(result["detail"].items()):
        policies = found["policies"]
        last = max(int(name.split()[1]) for name in policies if name.startswith("round ")) + 1
        arms = [policies[name] for name in ("SFT, verified", *(f"round {n}" for n in range(1, last)), "RL, then SFT")]
        best = next(key for key in arms[0] if key.startswith("best"))
        lows, highs = ([arm["pass1"][end] for arm in arms] for end in ("low", "high"))
        axis.fill_between(range(last + 1), lows, highs, color=f"C{colour}", alpha=0.12, linewidth=0)
        axis.plot([arm["pass1"]["mean"] for arm in arms], ".-", color=f"C{colour}", label=f"{seed}, mean")
        axis.plot([arm[best]["mean"] for arm in arms], ".--", color=f"C{colour}", label=f"{seed}, best of {best[4:]}")
        baseline = policies[found["best_baseline"]]["pass1"]["mean"]
        axis.axhline(
            baseline, color=f"C{colour}", linestyle=":", label=f"{seed}, best baseline: {found['best_baseline']}"
        )
    axis.set_xlabel("rounds of RL")
    axis.set_ylabel("held-out pass rate")
    axis.legend(frameon=False, fontsize=8)
    return svg(figure, axis)


def trials(result: dict[str, Any]) -> str:
    """Plot the development pass rate over RL steps of every trial that was evaluated at several steps, at its best
    temperature; trials from the same kind of SFT policy have the same colour."""
    figure = Figure(figsize=(6.5, 5.5), layout="constrained")
    axis = figure.add_subplot()
    colours: dict[str, str] = {}
    for name, arm in result["detail"]["arms"].items():
        steps = sorted({row["step"] for row in arm["development"]})
        if len(steps) < 2 or not arm.get("training"):
            continue
        best = [max(row["pass"] for row in arm["development"] if row["step"] == step) for step in steps]
        start = next((start for start in STARTS if name.startswith(start)), name)
        label = None if start in colours else STARTS.get(start, start)
        colour = colours.setdefault(start, f"C{len(colours)}")
        axis.plot(steps, best, marker=".", color=colour, linewidth=1.2, label=label)
    axis.set_xlabel("RL steps")
    axis.set_ylabel("development pass rate")
    figure.legend(frameon=False, fontsize=8, loc="outside lower left")
    return svg(figure, axis)


STARTS = {
    "edit_line": "edits by line, repairs for 55 % of the functions",
    "edit_words": "edits by words, the same",
    "fewer keys": "repairs for 15 %",
    "laptop of": "the laptop recipe (15 %)",
    "4 %": "repairs for 4 %",
    "searching": "demonstrations that search (15 %)",
}
"""Description of the SFT policies of trials, by the beginning of the trials' names."""


def ablations(result: dict[str, Any]) -> str:
    """Plot the difference of each arm to its control in held-out pass@1."""
    figures = result["figures"]
    arms = [name.removesuffix("_ci95_low") for name in figures if name.endswith("_ci95_low")]
    rows = {
        f"{arm} ({figures[f'{arm}_seeds']} seeds)": {
            "mean": figures[f"{arm}_effect"],
            "low": figures[f"{arm}_ci95_low"],
            "high": figures[f"{arm}_ci95_high"],
        }
        for arm in arms
    }
    return forest(rows, "difference in held-out pass@1", zero=True)


def tokens_per_solved(result: dict[str, Any]) -> str:
    """Plot the sampled tokens per solved task of each arm that solves any, as mean and range over its seeds."""
    rows = {}
    for arm, found in result["detail"].items():
        runs = found.items() if isinstance(found, dict) else ()
        values = [each["tokens_per_solved"] for key, each in runs if key.startswith("seed ")]
        if values and None not in values:
            rows[arm] = {"mean": statistics.mean(values), "low": min(values), "high": max(values)}
    return forest(rows, "sampled tokens per solved task (mean and range of seeds)")


def broken_calls(result: dict[str, Any]) -> str | None:
    """Plot the invalid calls per episode on easy and hard tasks, if they have a penalty, are free, or their rollouts
    are dropped from training."""
    arms = {"broken_calls_free": "free", "broken_calls_dropped": "rollouts with one are dropped"}
    found = {arm: result["detail"][arm] for arm in arms if "easy" in result["detail"].get(arm, {})}
    if len(found) < len(arms):
        return None
    which, key = ("easy", "hard"), "invalid_calls_of_control_and_arm"
    groups = {"a penalty for each (control)": [next(iter(found.values()))[each][key][0] for each in which]}
    groups |= {title: [found[arm][each][key][1] for each in which] for arm, title in arms.items()}
    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axis = figure.add_subplot()
    for number, (title, values) in enumerate(groups.items()):
        axis.bar([place + 0.26 * (number - 1) for place in range(len(which))], values, width=0.24, label=title)
    axis.set_xticks(range(len(which)), [f"{each} third of tasks" for each in which])
    axis.set_ylabel("invalid calls an episode")
    axis.legend(frameon=False, fontsize=8, loc="upper left")
    return svg(figure, axis)


def declining(result: dict[str, Any]) -> str | None:
    """Plot the share of training rollouts with an edit over the steps of every seed, if every failure costs the same,
    or only that of an edit."""
    arms = {"control of declining_free": "the control", "declining_free": "not editing is free"}
    series = {
        f"{title}, {seed}": (list(range(1, 7)), runs[seed]["training"]["edited"])
        for arm, title in arms.items()
        for runs in [result["detail"].get(arm, {})]
        for seed in runs
        if seed.startswith("seed ")
    }
    return lines(series, x="sixth of the steps", y="rollouts with an edit", size=(6.5, 3.0)) if series else None


def hints(result: dict[str, Any]) -> str | None:
    """Plot the calls of a tool that does not exist over the steps, mean of the seeds, with and without hints."""
    title = next((name for name in result["detail"] if name.startswith("control of") and "hints" in name), "")
    arms = {
        title: "no hints",
        "broken_calls_priced": "a price of 0.05",
        "hints": "hints, gap to 5 nats",
        "hints_until": "hints until rejected",
        "hints_ungated": "hints, all tokens",
    }
    series = {}
    for arm, label in arms.items():
        runs = [row for seed, row in result["detail"].get(arm, {}).items() if seed.startswith("seed ")]
        rates = [row["training"]["errors"]["unknown_tool"] for row in runs]
        if rates:
            series[label] = (list(range(1, 7)), [sum(each) / len(each) for each in zip(*rates, strict=True)])
    about = "calls of a missing tool per rollout"
    return lines(series, x="sixth of the steps", y=about, size=(6.5, 3.2)) if series else None


def in_time(result: dict[str, Any]) -> str | None:
    """Plot the pass rate of training rollouts over the minutes, mean of the seeds, of synchronous and asynchronous
    RL."""
    control = next((name for name in result["detail"] if name.startswith("control of") and "sync" in name), "")
    series = {}
    for arm, label in ((control, "asynchronous"), ("sync", "synchronous")):
        runs = [row["training"] for seed, row in result["detail"].get(arm, {}).items() if seed.startswith("seed ")]
        if runs:
            minutes, solved = ([run[key] for run in runs] for key in ("minutes", "solved"))
            series[label] = tuple(
                [statistics.mean(each) for each in zip(*row, strict=True)] for row in (minutes, solved)
            )
    if not series:
        return None
    return lines(series, x="minutes since the first step", y="solved training rollouts", size=(6.5, 3.0))


def beside_trl(result: dict[str, Any]) -> str | None:
    """Plot the mean reward over seconds, ours and TRL's, for every seed."""
    if "trl" not in result["detail"]:
        return None
    runs = result["detail"]["trl"]["seconds_and_reward_by_step"]
    series = {}
    for name, label in (("ours", "Woodshed"), ("trl", "TRL")):
        for seed, rows in enumerate(runs[name]):
            series[f"{label}, seed {seed}"] = ([row[0] for row in rows], [row[1] for row in rows])
    return lines(series, x="seconds", y="reward of the samples", smooth=8, size=(6.5, 3.4))


def forest(rows: Mapping[str, Interval], label: str, *, zero: bool = False) -> str:
    """Plot means with their intervals, one per line, the first on top."""
    figure = Figure(figsize=(6.5, 0.7 + 0.3 * max(2, len(rows))), layout="constrained")
    axis = figure.add_subplot()
    for place, row in enumerate(rows.values()):
        axis.plot([row["low"], row["high"]], [-place, -place], color="0.5", linewidth=1.5)
        axis.plot([row["mean"]], [-place], "o", color="C0")
    axis.set_yticks([-place for place in range(len(rows))], list(rows), fontsize=8)
    axis.set_ylim(0.5 - len(rows), 0.5)
    if zero:
        axis.axvline(0, color="0.3", linewidth=0.8)
    axis.set_xlabel(label)
    return svg(figure, axis)


def svg(figure: Figure, axis: Any) -> str:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    out = io.StringIO()
    with rc_context({"svg.hashsalt": "woodshed"}):  # the same numbers give the same file
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


PLOTS: Sequence[tuple[str, str, Callable[[dict[str, Any]], str | None]]] = (
    ("baselines", "laptop", baselines),
    ("rounds", "evening", rounds),
    ("rounds_small", "evening_small", rounds),
    ("trials", "research", trials),
    ("ablations", "ablations", ablations),
    ("tokens_per_solved", "ablations", tokens_per_solved),
    ("broken_calls", "ablations", broken_calls),
    ("declining", "ablations", declining),
    ("hints", "ablations", hints),
    ("in_time", "ablations", in_time),
    ("beside_trl", "throughput", beside_trl),
)
"""Name of the plot, name of the result that it is drawn from, and the function."""


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name, source, draw in PLOTS:
        path = RESULTS / f"{source}.json"
        drawn = draw(json.loads(path.read_text())) if path.exists() else None
        if drawn is None:
            print(f"{name}: nothing in {path.name}")
            continue
        (OUT / f"{name}.svg").write_text(drawn)
        print(f"{name}.svg from {path.name}")


if __name__ == "__main__":
    main()
