"""Print a benchmark or one of its tasks for reading."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from woodshed.record.task import Task
from woodshed.tasks.library.statistics import BENCHMARKS

from .accepted import accepted_of
from .assemble import EXTRA, read_about
from .checks import readings_of
from .lock import RETIRED, Entry, Lock


def figures(lock: Lock) -> dict[str, Any]:
    """Return headline numbers of the tasks in use. ``stated_by_rules``: mean share of what the tests need that the
    query states; ``agreement_of_readings``: None if nothing was sampled."""
    used = list(lock.in_use.values())
    rated = [entry.agreement for entry in used if entry.agreement >= 0]
    by_rules = [entry.stated for entry in used if entry.stated >= 0]
    return {
        "tasks": len(used),
        "retired": len(lock.tasks) - len(used),
        "tasks_from_history": sum(entry.origin == "history" for entry in used),
        "tasks_from_sessions": sum(entry.origin == "session" for entry in used),
        "median_changed_lines": median([entry.changed_lines for entry in used]) if used else None,
        "median_prompt_chars": median([entry.prompt_chars for entry in used]) if used else None,
        "stated_by_rules": round(sum(by_rules) / len(by_rules), 3) if by_rules else None,
        "agreement_of_readings": round(sum(rated) / len(rated), 3) if rated else None,
    }


def benchmark_text(lock: Lock) -> str:
    """Return a table of the tasks, their statistics next to published ones, and what each round did."""
    head = f"{'task':44} {'date':10} {'origin':8} {'query':6} {'lines':>5} {'chars':>5} {'stated':>6} {'agree':>6}"
    rows = [head]
    for name, entry in sorted(lock.tasks.items(), key=lambda pair: (pair[1].date, pair[0]), reverse=True):
        rows.append(_row(name, entry))
    found = figures(lock)
    levels = Counter(entry.query for entry in lock.in_use.values())
    rows += [
        "",
        f"{found['tasks']} tasks in use, {found['retired']} retired",
        f"origin: {found['tasks_from_history']} history, {found['tasks_from_sessions']} session",
        "queries: " + ", ".join(f"{number} {level}" for level, number in levels.items()),
        f"medians: {found['median_changed_lines']} changed lines, {found['median_prompt_chars']} characters of prompt",
    ]
    rows += [
        f"  published: {each.name}: {each.changed_lines} changed lines, {each.prompt_chars} characters"
        for each in BENCHMARKS
    ]
    rows.append(f"source of the published numbers: {BENCHMARKS[0].source}")
    if found["stated_by_rules"] is not None:
        rows.append(f"ambiguity by rules: queries state {found['stated_by_rules']:.0%} of what their tests need")
    if found["agreement_of_readings"] is not None:
        rows.append(f"ambiguity by readings: agreement {found['agreement_of_readings']:.2f}")
    for number, each in enumerate(lock.rounds, 1):
        since = f" since {each['since']}" if each.get("since") else ""
        counted = ", ".join(f"{len(each[key])} {key.replace('_', ' ')}" for key in ("added", "retired", "left_out"))
        rows.append(f"round {number}{since}: {counted}")
    return "\n".join(rows)


def _row(name: str, entry: Entry) -> str:
    stated, agreement = (f"{value:.2f}" if value >= 0 else "-" for value in (entry.stated, entry.agreement))
    gone = f"  {RETIRED}: {entry.why}" if entry.status == RETIRED else ""
    return (
        f"{name:44} {entry.date[:10]:10} {entry.origin:8} {entry.query:6} {entry.changed_lines:5} "
        f"{entry.prompt_chars:5} {stated:>6} {agreement:>6}{gone}"
    )


def task_text(folder: Path, task: Task) -> str:
    """Return the queries of one task, what they leave unstated, the context, readings, accepted solutions and the
    reference diff."""
    about, info = read_about(task), task.info
    parts = [f"{task.name}  ({about['origin']}, commit {info.provenance.get('commit', '')[:12]})"]
    for level in ("terse", "named", "full"):
        mark = "  <- the instruction" if level == about["level"] else ""
        parts.append(f"--- {level} query{mark}\n{about[level]}")
    parts.append("--- context: " + (", ".join(about["context"]) or "no file is named"))
    if about["sessions"]:
        parts.append(f"--- sessions: {', '.join(about['sessions'])} ({info.provenance['traced_lines']} lines traced)")
    left = about["stated"]["unstated"]
    parts.append(f"--- needed by the tests and stated by nothing: {', '.join(left) or 'nothing'}")
    for each in readings_of(folder, task.path.name):
        told = "-" if each.agreement is None else f"{each.agreement:.2f}"
        parts.append(f"--- readings: {each.solved} of {each.readings} solve it, agreement {told}, {each.empty} empty")
    kept = accepted_of(folder, task.path.name)
    parts += [f"--- accepted besides the reference: {each.digest[:12]} from {each.origin}" for each in kept]
    parts.append(f"--- reference diff ({about['changed_lines']} changed lines)")
    parts.append((task.path / EXTRA / "reference.diff").read_text("utf-8").rstrip())
    return "\n".join(parts)
