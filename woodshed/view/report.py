"""``report.html`` and the final table of a run, made from its records only."""

from __future__ import annotations

import html
import json
import math
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from woodshed.evaluate.arms import (
    ADOPT,
    AFTER,
    BEFORE,
    arms_of,
    best_baseline,
    in_round,
    split_round,
    stage_of,
    title_of,
    titles,
)
from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.rl.growth.record import read_growth

from .expected import Expected, expected_section
from .health import conserved, health_section
from .page import STYLE
from .plots import bars, lines
from .summary import EFFORT, UNCOUNTED, Evaluation, evaluation, flagged, gains, telling_pairs


def transcript(trajectory: Trajectory) -> str:
    """Return HTML of an episode: outcome, status and effort, then the conversation with its calls and results. All text
    is escaped."""
    outcome = trajectory.outcome
    verdict = "resolved" if outcome and outcome.resolved else "not resolved"
    head = (
        f"<div class='verdict {'good' if verdict == 'resolved' else 'bad'}'>{verdict}</div>"
        f"<small>{html.escape(trajectory.status)} · {trajectory.effort.turns} turns · "
        f"{trajectory.effort.sampled_tokens} tokens sampled · versions {trajectory.version_range()}</small>"
    )
    return head + "".join(_message(m) for m in trajectory.messages if m.get("role") != "system")


def _message(message: dict[str, object]) -> str:
    role = str(message.get("role"))
    parts = []
    if content := message.get("content"):
        parts.append(html.escape(str(content)))
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", {})
        parts.append(
            f"<b>{html.escape(str(function.get('name')))}</b> {html.escape(_arguments(function.get('arguments')))}"
        )
    return f"<pre class='{html.escape(role)}'>{chr(10).join(parts)}</pre>"


def _arguments(text: object) -> str:
    try:
        values = json.loads(str(text))
    except ValueError:
        return str(text)
    return "  ".join(f"{k}={v}" for k, v in values.items()) if isinstance(values, dict) else str(values)


Cells = list[list[str]]
"""Rows of a table; the first has the names of the columns."""


class ReportError(Exception):
    """There is nothing to report yet; the message says what is missing."""


class Run(Protocol):
    """The parts of a run directory that a report reads."""

    @property
    def root(self) -> Path: ...

    @property
    def trajectories(self) -> Path: ...

    @property
    def report(self) -> Path: ...

    def stage_result(self, stage: str) -> dict[str, Any] | None: ...

    def stage_metrics(self, name: str) -> Path: ...


def build_report(run: Run, console: Console, expected: Expected | None = None) -> dict[str, Any]:
    """Write ``report.html`` and ``summary.json``, print the table, and return the summary's numbers.

    ``expected``: the curves that a run of this recipe should have. Raises ReportError if there is nothing to report.
    """
    if not run.trajectories.exists():
        raise ReportError(f"{run.root}: no trajectories yet; run the recipe first")
    store = TrajectoryStore(run.trajectories)
    kinds = _kinds(run.root)
    stages = {path.stem for path in (run.root / "stages").glob("*.json")}
    found = {name: evaluation(store, name, kinds) for name in arms_of({BEFORE, *stages})}
    known = {name: arm for name, arm in found.items() if arm is not None}
    samples = min((arm.samples for arm in known.values()), default=0)
    arms = {name: arm.best_of(samples) for name, arm in known.items()}
    before, after = arms.get(BEFORE), arms.get(AFTER)
    if before is None:
        raise ReportError(f"{run.root}: no evaluation yet; the run has not come that far")
    over = [name for name in (BEFORE, AFTER) if name in stages]
    transfer = [e for e in (evaluation(store, f"{name}-packages") for name in over) if e]
    steps = read_jsonl(run.stage_metrics("rollouts"))
    trainer = read_jsonl(run.stage_metrics("trainer"))
    named = titles(
        _learns(run.root, "sft", "verified"),
        _learns(run.root, "solved", "after_rl"),
        run.stage_result(ADOPT) is not None,
    )
    title = {name: title_of(name, named) for name in arms}
    temperatures = {name: (run.stage_result(stage_of(name)) or {}).get("temperature") for name in arms}
    unknown = UNCOUNTED if "program" in _recipe(run.root).get("harness", {}) else ()
    summary = _summary(run, arms, transfer, title, temperatures, unknown)
    stored = [row["id"] for row in store.rows("source = 'train'")]
    metrics = run.stage_metrics("rollouts").parent
    rollouts = conserved(run.root / "state.sqlite", stored, metrics, finished=run.stage_result("rl") is not None)
    if rollouts is not None:
        summary["rollouts"] = rollouts
    grown = read_growth(run.root / "state.sqlite")
    if grown is not None:
        summary["growth"] = {**grown.counts, "taken_out_tasks": grown.taken_out}
    (run.root / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False))
    tables, gain = _tables(arms, title, temperatures, unknown), _gain(arms, title)
    body = [_headline(tables, gain, before, transfer), _rounds(run, arms), _curves(steps, trainer, unknown)]
    caveats = [_UNFINISHED] if BEFORE not in stages else []
    keys = {(run.stage_result(stage_of(name)) or {}).get("held_out_key") for name in arms} - {None}
    if len(keys) > 1:
        caveats.append(_OTHER_INPUTS)
    body[:0] = [f"<p class='verdict bad'>{caveat}</p>" for caveat in caveats]
    shown = {name: arm for name, arm in arms.items() if split_round(name)[1] is None}
    body += [expected_section(run.root, expected), health_section(rollouts, grown, metrics), _behaviour(shown, title)]
    if after:
        body.append(_trajectories(store, before, after))
    body.append(_monitors(before, after, flagged(store.rows("source = 'train'"))))
    body.append(_time(run, summary))
    name = html.escape(run.root.name)
    page = f"<!doctype html><meta charset=utf-8><title>{name}</title><style>{STYLE}</style><h1>{name}</h1>"
    # An agent program may send half of a surrogate pair, which UTF-8 cannot hold.
    run.report.write_text(page + "".join(body), encoding="utf-8", errors="replace")
    if rollouts is not None:
        console.print(rollouts["error"] or rollouts["text"], style="red" if rollouts["error"] else None)
    for departure in expected.departures(run.root) if expected is not None else ():
        console.print(f"unlike other runs of this recipe: {departure}", style="yellow")
    _print(console, tables, gain, before, transfer, run)
    for caveat in caveats:
        console.print(caveat, style="yellow")
    store.close()
    return summary


def _summary(
    run: Run,
    arms: dict[str, Evaluation],
    transfer: list[Evaluation],
    title: dict[str, str],
    temperatures: dict[str, float | None],
    unknown: Collection[str],
) -> dict[str, Any]:
    before, after = arms[BEFORE], arms.get(AFTER)
    stages = {p.stem: run.stage_result(p.stem) or {} for p in sorted((run.root / "stages").glob("*.json"))}
    summary: dict[str, Any] = {
        "heldout_tasks": len(before.tasks),
        "samples": before.samples,
        "arms": {
            name: {
                "title": title[name],
                "temperature": temperatures[name],
                "pass1": vars(arm.pass1),
                "best": vars(arm.best),
                "first_attempts": _known(arm.first_attempts),
                "later_attempts": _known(arm.later_attempts),
                "submitted": arm.submitted,
                "statuses": arm.statuses,
                "effort": {key: None if key in unknown else value for key, value in arm.effort.items()},
            }
            for name, arm in arms.items()
        },
        "stage_seconds": {name: round(result.get("seconds", 0.0), 1) for name, result in stages.items()},
        "transfer": {e.name: vars(e.pass1) | {"tasks": len(e.tasks)} for e in transfer},
    }
    if after:
        best = best_baseline({name: arm.pass1.mean for name, arm in arms.items()})
        gain, best_gain = gains(arms[best], after)
        summary |= {"best_baseline": best, "gain": vars(gain), "best_gain": vars(best_gain)}
    return summary


def _tables(
    arms: dict[str, Evaluation],
    title: dict[str, str],
    temperatures: dict[str, float | None],
    unknown: Collection[str],
) -> list[Cells]:
    """Return two tables with a row for each policy, baselines first: success rates, and effort per episode.
    ``unknown``: what is not known of the effort."""
    samples = arms[BEFORE].samples
    success = [["policy", "pass@1", f"best-of-{samples}", "T", "first", "later", "submitted"]]
    effort = [["per episode", *(key.replace("_", " ") for key in EFFORT)]]
    for name, arm in arms.items():
        temperature = temperatures[name]
        shares = [_share(arm.first_attempts), _share(arm.later_attempts), _share(arm.submitted)]
        shown = "-" if temperature is None else f"{temperature:g}"
        success.append([title[name], str(arm.pass1), str(arm.best), shown, *shares])
        effort.append([title[name], *("-" if key in unknown else f"{arm.effort[key]:.1f}" for key in EFFORT)])
    return [success, effort]


_LEGEND = (
    "Intervals: 95 %, bootstrap over tasks. T: sampling temperature. first, later: share of the first and of all later "
    "attempts at a repair that passed. submitted: share of episodes that the agent ended."
)


_UNFINISHED = (
    "The evaluation before RL is not finished. Solved episodes end first, so its success rates are too high so far."
)

_OTHER_INPUTS = "The policies were graded by different held-out keys, so their scores are not comparable as they stand."


def _known(value: float) -> float | None:
    """Return None for nan, which JSON does not support, else ``value``."""
    return None if math.isnan(value) else value


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _gain(arms: dict[str, Evaluation], title: dict[str, str]) -> str:
    """Return the gain of RL over the best baseline, paired by task, in words; '' before RL was evaluated."""
    if AFTER not in arms:
        return ""
    best = best_baseline({name: arm.pass1.mean for name, arm in arms.items()})
    gain, best_gain = gains(arms[best], arms[AFTER])
    of = "the best baseline" if len(arms) > 2 else "where it started"
    return f"{title[AFTER]} over {title[best]} ({of}): pass@1 {gain:+}, best-of-{arms[AFTER].samples} {best_gain:+}"


def _print(
    console: Console, tables: list[Cells], gain: str, before: Evaluation, transfer: list[Evaluation], run: Run
) -> None:
    console.print(f"{len(before.tasks)} held-out tasks x {before.most_samples} samples. {_LEGEND}")
    for head, *rows in tables:
        shown = Table(*head)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    if gain:
        console.print(gain)
    for each in transfer:
        console.print(f"{each.name}: pass@1 {each.pass1} on {len(each.tasks)} tasks of real packages")
    console.print(f"report: {run.report}", soft_wrap=True)


def _headline(tables: list[Cells], gain: str, before: Evaluation, transfer: list[Evaluation]) -> str:
    note = f"{len(before.tasks)} held-out tasks x {before.most_samples} samples. {_LEGEND}"
    out = f"<p>{note}</p>" + "".join(_html_table(table) for table in tables)
    if gain:
        out += f"<p><b>{html.escape(gain)}</b>; paired by task.</p>"
    return out + "".join(
        f"<p>Real packages, never trained on ({html.escape(e.name)}): pass@1 {e.pass1} on {len(e.tasks)} tasks.</p>"
        for e in transfer
    )


def _html_table(table: Cells) -> str:
    head, *rows = table
    cells = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{html.escape(c)}</th>' for c in head)}</tr>{cells}</table>"


def _rounds(run: Run, arms: dict[str, Evaluation]) -> str:
    """Return a plot of held-out pass rates by RL step; '' if RL has only one round."""
    points = [(0, arms[BEFORE])]
    for name, arm in arms.items():
        stage, number = split_round(name)
        if stage == AFTER:
            points.append(((run.stage_result(in_round("rl", number)) or {}).get("step", 0), arm))
    if len(points) < 3:
        return ""
    x = [step for step, _ in points]
    rates = {
        "pass@1": (x, [arm.pass1.mean for _, arm in points]),
        f"best-of-{points[0][1].samples}": (x, [arm.best.mean for _, arm in points]),
    }
    return f"<h2>Held-out tasks by round</h2><div class=half>{lines(rates, x='step', y='held-out tasks')}</div>"


def _curves(steps: list[dict[str, Any]], trainer: list[dict[str, Any]], unknown: Collection[str]) -> str:
    if not steps:
        return ""
    x = [s["step"] for s in steps]
    rate = {
        "pass rate": (x, [s.get("pass_rate", 0.0) for s in steps]),
        "best of group": (x, [s.get("best_of_group", 0.0) for s in steps]),
    }
    effort = {
        name: (x, [s.get("effort", {}).get(name, 0.0) for s in steps])
        for name in ("turns", "test_runs", "edits", "invalid_calls")
        if name not in unknown
    }
    plots = [
        lines(rate, x="step", y="training batches", smooth=8),
        lines(effort, x="step", y="per episode", smooth=8),
        lines(
            {"tokens": (x, [s.get("effort", {}).get("sampled_tokens", 0.0) for s in steps])},
            x="step",
            y="sampled tokens",
            smooth=8,
        ),
        lines({"staleness": (x, [s.get("staleness", 0) for s in steps])}, x="step", y="oldest token, versions behind"),
    ]
    shown = {
        "k3": "train/rollout mismatch k3",
        "replay_refused_share": "experts kept out by replay_ratio",
        "grad_norm": "gradient norm",
    }
    for key, label in shown.items():
        known = [t for t in trainer if isinstance(t.get(key), (int, float))]  # a step may train nothing
        if known:
            plots.append(lines({key: ([t["step"] for t in known], [t[key] for t in known])}, x="step", y=label))
    return "<h2>Learning</h2><div class=row>" + "".join(f"<div class=half>{p}</div>" for p in plots) + "</div>"


def _behaviour(arms: dict[str, Evaluation], title: dict[str, str]) -> str:
    statuses = {title[name]: {k: float(v) for k, v in arm.statuses.items()} for name, arm in arms.items()}
    kinds = {title[name]: {k: v for k, (_, v) in arm.kinds.items()} for name, arm in arms.items()}
    out = f"<h2>Behaviour</h2><div class=row><div class=half>{bars(statuses, y='episodes')}</div>"
    if any(kinds.values()):
        out += f"<div class=half>{bars(kinds, y='pass@1 by kind of bug')}</div>"
    return out + "</div>"


def _trajectories(store: TrajectoryStore, before: Evaluation, after: Evaluation) -> str:
    out = "<h2>The same task, before and after</h2>"
    for left, right in telling_pairs(store, before, after):
        out += f"<h3>{html.escape(left.task)}</h3><div class=row><div class=half>{transcript(left)}</div>"
        out += f"<div class=half>{transcript(right)}</div></div>"
    return out


def _monitors(before: Evaluation, after: Evaluation | None, training: dict[str, int]) -> str:
    counts = (before.flagged, training, after.flagged if after else {})
    names = sorted({name for count in counts for name in count})
    if not names:
        return "<h2>Monitors</h2><p>Nothing that looks like a reward hack was found.</p>"
    rows = "".join(
        f"<tr><td>{html.escape(name.replace('_', ' '))}</td>"
        + "".join(f"<td>{c.get(name, 0)}</td>" for c in counts)
        + "</tr>"
        for name in names
    )
    head = "<tr><th>episodes flagged</th><th>before RL</th><th>in training</th><th>after RL</th></tr>"
    return f"<h2>Monitors</h2><table>{head}{rows}</table><p><small>woodshed monitors RUN shows them.</small></p>"


def _time(run: Run, summary: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:.0f} s</td></tr>" for k, v in summary["stage_seconds"].items())
    return f"<h2>Where the time went</h2><table>{rows}</table><p><small>{html.escape(str(run.root))}</small></p>"


def _recipe(root: Path) -> dict[str, Any]:
    """Return the run's own recipe as it is written, empty if there is none."""
    try:
        return tomllib.loads((root / "recipe.toml").read_text("utf-8"))
    except FileNotFoundError:
        return {}


def _learns(root: Path, part: str, setting: str) -> bool:
    """Return whether the run's own recipe sets ``learn.PART.SETTING`` to true."""
    return bool(_recipe(root).get("learn", {}).get(part, {}).get(setting, False))


def _kinds(root: Path) -> dict[str, str]:
    path = root / "tasks" / "kinds.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}
