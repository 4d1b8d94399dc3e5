"""The results of ``woodshed evaluate`` as tables in the terminal and as one HTML page, made from ``results.json``."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .page import STYLE
from .plots import scatter

Results = Mapping[str, Any]
Cells = list[list[str]]
"""Rows of a table; the first has the names of the columns."""
AXES = {"tokens": "tokens per episode", "turns": "turns per episode", "seconds": "seconds per episode"}
_MANY_TASKS = 400
_HEAD = 24
"""Width that is enough for a column of text, whose lines can break."""
_AXES_SAID = (
    "<p>Rules over the recorded episodes; an episode that says nothing about one counts for no mean. "
    "+ and - mark a value above or below the baseline's whose paired 95 % interval does not contain 0.</p>"
)


def print_results(results: Results, console: Console) -> None:
    """Print the table of the policies, their differences, and notes on what is incomplete or not comparable.

    Each policy is a column, because there are many figures and a terminal is narrow; those that do not fit beside the
    others stand in a table below.
    """
    scores = [list(column) for column in zip(*score_cells(results), strict=True)]
    tables = [*_fitting(scores, 1, console.width)]
    if results["differences"]:
        tables.append(difference_cells(results))
    if results["axes"]:
        tables += _fitting(axis_cells(results), 2, console.width)
    if results["agreements"]:
        tables.append(agreement_cells(results))
    for cells in tables:
        console.print(_rich(cells))
    for line in notes(results):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def write_page(results: Results, path: Path) -> None:
    """Write a self-contained page, without scripts and with plots as SVG."""
    title = f"Evaluation of {', '.join(policy['name'] for policy in results['policies'])}"
    parts = [
        f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in notes(results)),
        _table(score_cells(results)),
    ]
    if results["differences"]:
        parts += [f"<h2>Difference in pass@1 to {html.escape(_baseline_said(results['baselines']))}</h2>"]
        parts += [_table(difference_cells(results))]
    if results["axes"]:
        parts += ["<h2>Beside correctness</h2>", _AXES_SAID, _table(axis_cells(results, wide=True))]
    if results["agreements"]:
        parts += [f"<h2>How far the judge {html.escape(results['judge'])} can be trusted</h2>"]
        parts += [_table(agreement_cells(results))]
    parts += ["<h2>Score against cost</h2>", _pareto(results)]
    suites = list(results["settings"]["suites"])
    if len(suites) > 1:
        for suite in suites:
            parts += [f"<h2>{html.escape(suite)}</h2>", _table(score_cells(results, suite))]
    cheats = cheat_cells(results)
    if len(cheats) > 1:
        parts += ["<h2>Cheating and what monitors flagged</h2>", _table(cheats)]
    swept = sweep_cells(results)
    if len(swept) > 1:
        parts += ["<h2>Temperatures on the development tasks</h2>", _table(swept)]
    parts += ["<h2>Tasks</h2>", _table(task_cells(results))]
    path.write_text("".join(parts), encoding="utf-8")


def _baseline_said(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"the best of {', '.join(names)}"


def score_cells(results: Results, suite: str = "") -> Cells:
    """Return one row for each policy, with its scores on all suites or on ``suite``."""
    policies = results["policies"]
    figures = [policy["suites"][suite] if suite else policy for policy in policies]
    most = max((int(k) for each in figures for k in each["pass_at"]), default=1)
    priced = any(each["dollars"] is not None for each in figures)
    judged = any(each["judged"] for each in figures)
    head = ["policy", "tasks", "pass@1 [95 %]"]
    head += [f"pass@{most}"] if most > 1 else []
    head += ["submitted", "infra errors", "tokens", "turns", "seconds"]
    head += (["dollars"] if priced else []) + (["cheats"] if judged else [])
    cells = [head]
    for policy, each in zip(policies, figures, strict=True):
        row = [policy["name"], str(each["tasks"]), _estimate(each["pass1"])]
        row += [_number(each["pass_at"].get(str(most)), 3)] if most > 1 else []
        row += [_share(each["submitted"]), _share(each["infra_rate"]), _number(each["tokens"], 0)]
        row += [_number(each["turns"], 1), _number(each["seconds"], 1)]
        row += [_number(each["dollars"], 4)] if priced else []
        row += [f"{each['cheats']} of {each['judged']}"] if judged else []
        cells.append(row)
    return cells


def difference_cells(results: Results) -> Cells:
    """Return the paired differences to the baseline."""
    cells = [["policy", "baseline", "tasks", "difference [95 %]"]]
    for each in results["differences"]:
        gain = "" if each["gain"] is None else _estimate(each["gain"], sign="+")
        cells.append([each["policy"], each["baseline"], str(each["tasks"]), f"{gain} {each['note']}".strip()])
    return cells


def axis_cells(results: Results, wide: bool = False) -> Cells:
    """Return one row for each axis, one column for each policy. A mark (+ or -) means that the interval of the
    difference to the baseline does not contain 0. Equal differences give an interval without width, which says nothing.
    ``wide``: with intervals."""
    policies = results["policies"]
    cells = [["mean over tasks", "better", *(policy["name"] for policy in policies)]]
    for axis, about in results["axes"].items():
        row = [about["title"], about["better"]]
        for policy in policies:
            value = policy["axes"].get(axis)
            gain = next((d["axes"].get(axis) for d in results["differences"] if d["policy"] == policy["name"]), None)
            sure = gain and None not in gain.values() and gain["low"] * gain["high"] > 0 and gain["low"] < gain["high"]
            shown = "-" if value is None else _estimate(value, digits=2) if wide else _number(value["mean"], 3)
            row.append(f"{shown} {'+' if gain['mean'] > 0 else '-'}" if gain and sure else shown)
        cells.append(row)
    return cells


def agreement_cells(results: Results) -> Cells:
    """Return how often the judge agrees with itself in repeated readings, and with a rule, by aspect."""
    cells = [["judge on", "episodes", "no answer", "agrees with itself", "kappa", "with the rule", "agrees", "kappa"]]
    for aspect, each in results["agreements"].items():
        own = [_share(each["agreement"]), _number(each["kappa"], 2)]
        rule = [each["rule"] or "-", _share(each["rule_agreement"]), _number(each["rule_kappa"], 2)]
        cells.append([aspect, str(each["episodes"]), str(each["failed"]), *own, *rule])
    return cells


def cheat_cells(results: Results) -> Cells:
    """Return the reasons of cheats and findings of monitors, by policy, with the number of episodes."""
    cells = [["policy", "what", "episodes"]]
    for policy in results["policies"]:
        ended = policy["episodes"] - policy["infra_errors"]
        for name, count in sorted(policy["reasons"].items()):
            cells.append([policy["name"], f"cheat: {name}", f"{count} of {policy['judged']}"])
        for name, count in sorted(policy["flagged"].items()):
            cells.append([policy["name"], f"flagged: {name}", f"{count} of {ended}"])
    return cells


def sweep_cells(results: Results) -> Cells:
    """Return the development score at each temperature that was tried."""
    cells = [["policy", "temperature", "development pass@1", ""]]
    for policy in results["policies"]:
        for at, value in policy["tried"].items():
            chosen = "chosen" if float(at) == policy["temperature"] else ""
            cells.append([policy["name"], at, _number(value, 3), chosen])
    return cells


def task_cells(results: Results) -> Cells:
    """Return the solved samples of every task, hardest first, at most ``_MANY_TASKS``."""
    names = [policy["name"] for policy in results["policies"]]
    rows = [(suite, task, by) for suite, tasks in results["tasks"].items() for task, by in tasks.items()]
    rows.sort(key=lambda row: (sum(c for c, _ in row[2].values()), row[0], row[1]))
    cells = [["suite", "task", *names]]
    for suite, task, by in rows[:_MANY_TASKS]:
        cells.append([suite, task, *(f"{by[n][0]}/{by[n][1]}" if n in by else "" for n in names)])
    if len(rows) > _MANY_TASKS:
        cells.append(["", f"{len(rows) - _MANY_TASKS} more in results.json", *("" for _ in names)])
    return cells


def notes(results: Results) -> list[str]:
    """Return notes that a reader needs: budgets, missing episodes, noise floor, regrading, network, harnesses."""
    found = [f"not complete: {results['note']}"] if results["note"] else []
    for policy in results["policies"]:
        ended = policy["episodes"] - policy["infra_errors"]
        if ended < policy["planned"]:
            found.append(f"{policy['name']}: {ended} of {policy['planned']} episodes; the same command goes on")
        if policy["noise_floor"]:
            floor = policy["noise_floor"]
            found.append(f"{policy['name']}: run again, pass@1 differs by {floor:.3f} (standard deviation) from noise")
    if results["regraded"]:
        found.append(f"graded again at {results['regraded']}")
    for name, about in results["settings"]["policies"].items():
        if about.get("strict"):
            found.append(f"{name}: {about['strict']} in boxes that could reach {', '.join(about['network'])}")
    abouts = list(results["settings"]["policies"].values())
    for part, said in (("grading", "graders"), ("limits", "limits of the boxes")):
        if any(about.get(part) != abouts[0].get(part) for about in abouts):
            found.append(
                f"different {said} ([{'grading' if part == 'grading' else 'sandbox'}] of the recipes): scores are not "
                "comparable as they stand; --agent puts all policies into one"
            )
    hashes = {policy["harness_hash"] for policy in results["policies"]}
    if len(hashes) > 1:
        found.append(
            f"{len(hashes)} different harnesses: scores are not comparable as they stand; --agent puts all policies "
            "into one, --across-harnesses compares nevertheless"
        )
    return found


def _pareto(results: Results) -> str:
    plots = []
    for axis, title in AXES.items():
        points = {
            policy["name"]: (policy[axis], policy["pass1"]["mean"])
            for policy in results["policies"]
            if policy[axis] is not None and policy["pass1"]["mean"] is not None
        }
        if points:
            front = [name for name in results["pareto"][axis] if name in points]
            plots.append(f"<div class=half>{scatter(points, front, x=title, y='pass@1')}</div>")
    said = "<p>The line joins the policies that no other beats in both.</p>"
    return f"{said}<div class=row>{''.join(plots)}</div>" if plots else "<p>No finished episode.</p>"


def _table(cells: Cells) -> str:
    head = "".join(f"<th>{html.escape(cell)}" for cell in cells[0])
    rows = ("<tr>" + "".join(map(_cell, row)) for row in cells[1:])
    return f"<div class=wide><table><tr>{head}{''.join(rows)}</table></div>"


def _cell(text: str) -> str:
    """Return a table cell; an estimate stays on one line with its interval."""
    return f"<td{' class=figure' if text.endswith(']') or '] ' in text else ''}>{html.escape(text)}"


def _fitting(cells: Cells, heads: int, width: int) -> Iterator[Cells]:
    """Yield tables of the first ``heads`` columns and as many of the others, at least one, as fit into ``width``. Only
    the former, which hold text, have to break lines."""
    needed = [max(map(len, column)) + 3 for column in zip(*cells, strict=True)]
    rest = width - 1 - sum(min(each, _HEAD) for each in needed[:heads])
    start = heads
    while start < len(needed):
        end, room = start + 1, rest - needed[start]
        while end < len(needed) and needed[end] <= room:
            end, room = end + 1, room - needed[end]
        yield [row[:heads] + row[start:end] for row in cells]
        start = end


def _rich(cells: Cells) -> Table:
    table = Table()
    for head in _escaped(cells[0]):
        table.add_column(head, overflow="fold")  # by default what does not fit is cut, numbers included
    for row in cells[1:]:
        table.add_row(*_escaped(row))
    return table


def _escaped(row: Sequence[str]) -> list[str]:
    return [cell.replace("[", "\\[") for cell in row]


def _estimate(value: Mapping[str, float | None], sign: str = "", digits: int = 3) -> str:
    mean, low, high = (value[key] for key in ("mean", "low", "high"))
    if mean is None or low is None or high is None:
        return "-"
    return f"{mean:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"
