"""Make a task of the benchmark from a validated candidate (``tasks build``): add the query and its description.

The task directory gets a folder ``benchmark``: ``queries.json`` (terse, named and full query, context, what the query
states) and ``reference.diff``. Agents get neither.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.task import HISTORY, Task
from woodshed.record.toml import to_toml
from woodshed.tasks.change import change_of
from woodshed.tasks.packages.catalogue import load_catalogue
from woodshed.tasks.packages.history import Commit
from woodshed.tasks.packages.source import fetch_history
from woodshed.tasks.sources.claim import SOURCES
from woodshed.tasks.sources.repository import Objects

from .lock import Entry
from .query import Queries, Stated, queries_of_commit, queries_of_session, stated
from .settings import BenchmarkSettings, QueryLevel
from .trace import Traced

EXTRA = "benchmark"
LEVELS: tuple[QueryLevel, ...] = ("terse", "named", "full")
_LEAST = 12
"""Minimum number of characters of a query."""


@dataclass(frozen=True)
class Chosen:
    """The query of a task: its ``level``, text and what it states; ``terse``: what the terse query states."""

    level: QueryLevel
    text: str
    stated: Stated
    terse: Stated


def choose(queries: Queries, terse: Stated, task: Task, settings: BenchmarkSettings) -> Chosen | str:
    """Return the query according to ``settings.query``, or the reason why there is none. ``terse``: what the terse
    query states."""
    if len(queries.terse) < _LEAST:
        return "the query says too little"
    levels = LEVELS if settings.query == "auto" else (settings.query,)
    for level in levels:
        text = queries.of(level)
        found = stated(text, task)
        if found.score is None:
            return "its tests cannot be read, so it is not known what the query must state"
        if found.score >= settings.min_stated:
            return Chosen(level, text, found, terse)
    return f"ambiguous: {_share(found)} of what the tests need is stated"


def _share(found: Stated) -> str:
    return f"{len(found.needed) - len(found.unstated)} of {len(found.needed)} words"


def commits_of(build: Path) -> dict[str, Commit]:
    """Return the commits by id, of every repository that a task build has pinned."""
    found: dict[str, Commit] = {}
    for package in load_catalogue(build / SOURCES).packages.values():
        if package.history:
            objects = Objects(fetch_history(package, build))
            try:
                found |= {c.id: c for c in objects.log(package.commit, first_parent=True)}
            finally:
                objects.close()
    return found


def queries_of(task: Task, commit: Commit, traced: Mapping[str, Traced]) -> Queries:
    """Return the queries of a candidate, from the session that wrote its commit, else from the commit's message."""
    known = traced.get(commit.id)
    if known is None:
        return queries_of_commit(commit, task)
    return queries_of_session(known.session.asked, task, (known.session.id, *known.others))


def write_task(candidate: Task, place: Path, queries: Queries, chosen: Chosen, traced: Traced | None) -> Task:
    """Write the benchmark's task to ``place``, from a copy of the candidate."""
    shutil.copytree(candidate.path, place, ignore=shutil.ignore_patterns(HISTORY))
    (place / "instruction.md").write_text(chosen.text.rstrip() + "\n", encoding="utf-8")
    config = copy.deepcopy(candidate.config)
    provenance = config["metadata"]["woodshed"].setdefault("provenance", {})
    provenance |= {"query": chosen.level, "origin": queries.origin}
    if traced is not None:
        provenance |= {
            "sessions": ", ".join(queries.sessions),
            "traced_lines": f"{traced.lines} of {traced.added}",
        }
    write_whole(place / "task.toml", to_toml(config))
    change = change_of(candidate)
    (place / EXTRA).mkdir()
    about: dict[str, Any] = {
        **asdict(queries),
        "level": chosen.level,
        "stated": asdict(chosen.stated),
        "terse_stated": asdict(chosen.terse),
        "changed_files": list(change.files),
        "changed_lines": change.lines,
    }
    write_whole(place / EXTRA / "queries.json", json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    write_whole(place / EXTRA / "reference.diff", change.diff + "\n")
    return Task.load(place)


def read_about(task: Task) -> dict[str, Any]:
    """Return the content of the task's ``benchmark/queries.json``."""
    found: dict[str, Any] = json.loads((task.path / EXTRA / "queries.json").read_text("utf-8"))
    return found


def entry_of(task: Task, *, agreement: float | None, round: int) -> Entry:
    """Return the lock's entry for a task as it is on disk."""
    about, provenance = read_about(task), task.info.provenance
    score = about["stated"]["score"]
    return Entry(
        digest=task.digest,
        source=provenance.get("source", ""),
        commit=provenance.get("commit", ""),
        date=provenance.get("commit_date", ""),
        origin=about["origin"],
        query=about["level"],
        changed_lines=about["changed_lines"],
        prompt_chars=len(task.instruction.strip()),
        stated=-1.0 if score is None else float(score),
        agreement=-1.0 if agreement is None else float(agreement),
        round=round,
    )
