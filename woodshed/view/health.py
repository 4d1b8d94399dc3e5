"""The report's section on the health of RL: fates of the rollouts, alarms that fired, a plot for each metric."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.record.jsonl import read_jsonl
from woodshed.rl.conservation import REASONS, ConservationError, check_conservation, read_conservation
from woodshed.rl.growth.record import Grown
from woodshed.rl.health.measure import Step, effective_tools, flat_share, join
from woodshed.rl.health.watch import read_alarms

from .plots import lines


def conserved(ledger: Path, stored: Sequence[str], metrics: Path, *, finished: bool) -> dict[str, Any] | None:
    """Return the rollouts of a run by fate, checked against the trajectories, the batches and the trainer. ``error``
    names what does not add up, or is ''. None before RL, and for runs of earlier versions."""
    found = read_conservation(ledger)
    if found is None:
        return None
    error = ""
    try:
        batches, trainer = read_jsonl(metrics / "rollouts.jsonl"), read_jsonl(metrics / "trainer.jsonl")
        check_conservation(ledger, stored, batches, trainer, finished=finished)
    except ConservationError as problem:
        error = str(problem)
    return {
        "dispatched": found.dispatched,
        "trained": found.trained,
        "dropped": dict(found.dropped),
        "undecided": found.undecided,
        "replacements": found.replacements,
        "forks": found.forks,
        "text": str(found),
        "error": error,
    }


def health_section(conservation: Mapping[str, Any] | None, grown: Grown | None, metrics: Path) -> str:
    """Return the section as HTML; '' if there is nothing to show."""
    steps = join(read_jsonl(metrics / "rollouts.jsonl"), read_jsonl(metrics / "trainer.jsonl"))
    if conservation is None and not steps:
        return ""
    body = "<h2>Health of RL</h2>"
    if conservation is not None:
        body += _conservation(conservation)
    body += _growth(grown) if grown is not None else ""
    body += _alarms(read_alarms(metrics / "alarms.jsonl"))
    plots = _plots(steps)
    return body + "<div class=row>" + "".join(f"<div class=half>{plot}</div>" for plot in plots) + "</div>"


def _conservation(found: Mapping[str, Any]) -> str:
    rows = [("trained", found["trained"], "in a batch, with tokens that weigh something")]
    rows += [(reason, count, REASONS.get(reason, "")) for reason, count in found["dropped"].items()]
    if found["undecided"]:
        rows.append(("undecided", found["undecided"], "in flight, or waiting for a batch"))
    cells = "".join(
        f"<tr><td>{html.escape(name.replace('_', ' '))}</td><td>{count}</td><td>{html.escape(what)}</td></tr>"
        for name, count, what in rows
    )
    verdict = (
        f"<p class='verdict bad'>{html.escape(found['error'])}</p>"
        if found["error"]
        else "<p>They add up, and agree with the stored trajectories, the batches and the trainer.</p>"
    )
    return f"<p>{html.escape(found['text'])}</p><table>{cells}</table>{verdict}"


def _growth(grown: Grown) -> str:
    told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in grown.counts.items())
    bad = [("taken out", *row) for row in grown.taken_out.items()]
    bad += [("refused", *row) for row in grown.refused.items()]
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in bad)
    return f"<p>Tasks of this run (rl.growth): {told}.</p>" + (f"<table>{cells}</table>" if bad else "")


def _alarms(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>No alarm fired.</p>"
    cells = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(row.get(key, '')))}</td>" for key in _COLUMNS) + "</tr>" for row in rows
    )
    return f"<table><tr>{''.join(f'<th>{c}</th>' for c in _COLUMNS)}</tr>{cells}</table>"


_COLUMNS = ("step", "alarm", "action", "message")


def _plots(steps: Sequence[Step]) -> list[str]:
    """Return plots of the metrics that the run has; a run of an earlier version lacks some."""
    terms = sorted({name for step in steps for name in step.get("reward_terms", {})})
    statuses = sorted({name for step in steps for name in step.get("statuses", {})})
    tools = sorted({name for step in steps for name in step.get("tools", {})})
    lags = sorted({name for step in steps for name in step.get("staleness_histogram", {})}, key=int)
    idle = sorted({name for step in steps for name in step["idle"]})
    wanted: list[tuple[str, dict[str, Callable[[Step], Any]]]] = [
        ("reward, mean of each term", {name: _within("reward_terms", name) for name in terms}),
        ("entropy, nats per token", {"entropy": _within("trainer", "entropy", None)}),
        ("effective sample size, share of tokens", {"ess": _within("trainer", "ess", None)}),
        (
            "ratio to the sampling policy, percentiles",
            {f"p{p}": _within("trainer", f"ratio_p{p}", None) for p in (1, 50, 99)},
        ),
        ("sampled tokens, share by versions behind", {name: _within("staleness_histogram", name) for name in lags}),
        (
            "share of segments or rollouts",
            {"mixed versions": _value("mixed_version_share"), "retried": _value("retried_share")},
        ),
        (
            "share of the rollouts of a step",
            {
                "solved": _value("sampled_pass_rate"),
                "at a limit": _value("limit_share"),
                "infrastructure errors": _value("infra_share"),
            },
        ),
        ("share of groups that teach nothing", {"flat": flat_share}),
        (
            "tasks made and checked so far",
            {name: _within("growth", name, None) for name in ("made", "hard", "taken_out", "refused")},
        ),
        ("episodes by status", {name: _within("statuses", name) for name in statuses}),
        (
            "per episode",
            {
                "calls": _within("effort", "tool_calls", None),
                "invalid calls": _within("effort", "invalid_calls", None),
                "summaries": _value("summaries"),
            },
        ),
        (
            "share of episodes that edit; effective tools",
            {"edit rate": _value("edit_rate"), "effective tools": effective_tools},
        ),
        ("share of calls by tool", {name: _within("tools", name) for name in tools}),
        ("idle share of each process", {name: _within("idle", name, None) for name in idle}),
    ]
    plots = []
    for label, series in wanted:
        curves = {}
        for name, value in series.items():
            known = [(int(step["step"]), float(found)) for step in steps if (found := value(step)) is not None]
            if known:
                curves[name] = ([x for x, _ in known], [y for _, y in known])
        if curves:
            plots.append(lines(curves, x="step", y=label))
    return plots


def _value(key: str) -> Callable[[Step], Any]:
    return lambda step: step.get(key)


def _within(outer: str, key: str, missing: float | None = 0.0) -> Callable[[Step], Any]:
    return lambda step: step.get(outer, {}).get(key, missing)
