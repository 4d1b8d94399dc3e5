"""``report.html`` and the closing table of a run, from records only.

A trajectory as HTML that a person can read.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory

from .plots import bars, lines
from .summary import EFFORT, Evaluation, evaluation, flagged, gains, telling_pairs


def transcript(trajectory: Trajectory) -> str:
    """The conversation with its calls and results, then status, outcome and effort. All text is escaped."""
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


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em;color:#1c2024;background:#fff}
table{border-collapse:collapse}td,th{padding:.25em .9em .25em 0;text-align:left;border-bottom:1px solid #e4e7eb}
.row{display:flex;gap:2em;flex-wrap:wrap}.half{flex:1 1 440px;min-width:0}h2{margin-top:2em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;
margin:.3em 0;padding:.4em .7em;border-radius:6px;background:#f4f5f7;font-size:12.5px}
pre.assistant{background:#e8f1ff}pre.user{background:#fff6dd}.verdict{font-weight:600}.good{color:#13733c}.bad{color:#b3261e}
small{color:#667}svg{max-width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#16181b;color:#e3e5e8}pre{background:#22262b}pre.assistant{background:#1d2b40}
pre.user{background:#37311d}td,th{border-color:#333}.good{color:#5cc98a}.bad{color:#f08078}
svg{filter:invert(.88) hue-rotate(180deg)}}
"""


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


def build_report(run: Run, console: Console) -> dict[str, Any]:
    """Write ``report.html`` and ``summary.json``, print the table; the summary's numbers come back."""
    if not run.trajectories.exists():
        raise ReportError(f"{run.root}: no trajectories yet; run the recipe first")
    store = TrajectoryStore(run.trajectories)
    kinds = _kinds(run.root)
    before, after = evaluation(store, "before", kinds), evaluation(store, "after", kinds)
    if before is None:
        raise ReportError(f"{run.root}: no evaluation yet; the run has not come that far")
    transfer = [e for e in (evaluation(store, "before-packages"), evaluation(store, "after-packages")) if e]
    steps = read_jsonl(run.stage_metrics("rollouts"))
    trainer = read_jsonl(run.stage_metrics("trainer"))
    summary = _summary(run, before, after, transfer)
    (run.root / "summary.json").write_text(json.dumps(summary, indent=1))
    body = [_headline(before, after, transfer), _curves(steps, trainer), _behaviour(before, after)]
    if after:
        body.append(_trajectories(store, before, after))
    body.append(_monitors(before, after, flagged(store.rows("source = 'train'"))))
    body.append(_time(run, summary))
    title = html.escape(run.root.name)
    page = f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>"
    run.report.write_text(page + "".join(body), encoding="utf-8")
    _print(console, before, after, transfer, run)
    store.close()
    return summary


def _summary(run: Run, before: Evaluation, after: Evaluation | None, transfer: list[Evaluation]) -> dict[str, Any]:
    stages = {p.stem: run.stage_result(p.stem) or {} for p in sorted((run.root / "stages").glob("*.json"))}
    summary: dict[str, Any] = {
        "heldout_tasks": len(before.tasks),
        "samples": before.samples,
        "pass1_before": vars(before.pass1),
        "best_before": vars(before.best),
        "stage_seconds": {name: round(result.get("seconds", 0.0), 1) for name, result in stages.items()},
        "effort_before": before.effort,
        "statuses_before": before.statuses,
        "transfer": {e.name: vars(e.pass1) | {"tasks": len(e.tasks)} for e in transfer},
    }
    if after:
        gain, best_gain = gains(before, after)
        summary |= {
            "pass1_after": vars(after.pass1),
            "best_after": vars(after.best),
            "gain": vars(gain),
            "best_gain": vars(best_gain),
            "effort_after": after.effort,
            "statuses_after": after.statuses,
        }
    return summary


def _rows(before: Evaluation, after: Evaluation | None) -> list[tuple[str, str, str, str]]:
    rows = []
    gain = gains(before, after) if after else None
    for i, (label, estimate) in enumerate((("pass@1", "pass1"), (f"best-of-{before.samples}", "best"))):
        left = str(getattr(before, estimate))
        right = str(getattr(after, estimate)) if after else "-"
        rows.append((label, left, right, str(gain[i]) if gain else "-"))
    for key in EFFORT:
        right = f"{after.effort[key]:.1f}" if after else "-"
        rows.append((key.replace("_", " ") + " per episode", f"{before.effort[key]:.1f}", right, ""))
    return rows


def _print(
    console: Console, before: Evaluation, after: Evaluation | None, transfer: list[Evaluation], run: Run
) -> None:
    table = Table(
        title=f"{len(before.tasks)} held-out tasks x {before.samples} samples, 95 % bootstrap intervals over tasks"
    )
    for column in ("", "before RL", "after RL", "gain"):
        table.add_column(column)
    for row in _rows(before, after):
        table.add_row(*row)
    for evaluation_ in transfer:
        table.add_row(f"{evaluation_.name} pass@1", str(evaluation_.pass1), f"{len(evaluation_.tasks)} tasks", "")
    console.print(table)
    console.print(f"report: {run.report}")


def _headline(before: Evaluation, after: Evaluation | None, transfer: list[Evaluation]) -> str:
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in _rows(before, after)
    )
    note = f"{len(before.tasks)} held-out tasks, {before.samples} samples each; 95 % bootstrap intervals over tasks."
    extra = "".join(
        f"<p>Real packages, never trained on ({html.escape(e.name)}): pass@1 {e.pass1} on {len(e.tasks)} tasks.</p>"
        for e in transfer
    )
    return (
        f"<p>{note}</p><table><tr><th></th><th>before RL</th><th>after RL</th><th>gain</th></tr>{rows}</table>{extra}"
    )


def _curves(steps: list[dict[str, Any]], trainer: list[dict[str, Any]]) -> str:
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
    tx = [t["step"] for t in trainer]
    for key, label in (("k3", "train/rollout mismatch k3"), ("grad_norm", "gradient norm")):
        values = [t.get(key) for t in trainer]
        if values and all(isinstance(v, (int, float)) for v in values):
            plots.append(lines({key: (tx, [float(v) for v in values if v is not None])}, x="step", y=label))
    return "<h2>Learning</h2><div class=row>" + "".join(f"<div class=half>{p}</div>" for p in plots) + "</div>"


def _behaviour(before: Evaluation, after: Evaluation | None) -> str:
    evaluations = [e for e in (before, after) if e]
    statuses = {e.name: {k: float(v) for k, v in e.statuses.items()} for e in evaluations}
    kinds = {e.name: {k: v for k, (_, v) in e.kinds.items()} for e in evaluations}
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
        f"<tr><td>{name.replace('_', ' ')}</td>" + "".join(f"<td>{c.get(name, 0)}</td>" for c in counts) + "</tr>"
        for name in names
    )
    head = "<tr><th>episodes flagged</th><th>before RL</th><th>in training</th><th>after RL</th></tr>"
    return f"<h2>Monitors</h2><table>{head}{rows}</table><p><small>woodshed monitors RUN shows them.</small></p>"


def _time(run: Run, summary: dict[str, Any]) -> str:
    rows = "".join(f"<tr><td>{html.escape(k)}</td><td>{v:.0f} s</td></tr>" for k, v in summary["stage_seconds"].items())
    return f"<h2>Where the time went</h2><table>{rows}</table><p><small>{html.escape(str(run.root))}</small></p>"


def _kinds(root: Path) -> dict[str, str]:
    path = root / "tasks" / "kinds.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}
