"""Refresh a benchmark by date: add tasks of new commits, retire old ones. Nothing is deleted.

A retired task stays on disk and in the lock, so that old results stay readable; it is marked in its history, like every
task that is out of use, and ``load_benchmark`` leaves it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from woodshed.record.atomic import locked
from woodshed.record.history import Mark, note_mark
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.packages.index import PackageError

from .build import Inputs, Progress, Round, drop_unfinished, run_round, summary
from .lock import RETIRED, TASKS, BenchmarkError, Entry, Lock, busy, read_lock, verified, write_lock
from .settings import BenchmarkSettings, checked_date


@dataclass(frozen=True)
class Retirement:
    """``most``: number of tasks to keep in use, newest commits first, 0 for no limit; ``before``: date (YYYY-MM-DD),
    tasks of older commits are retired, '' for no limit."""

    most: int = 0
    before: str = ""

    def __post_init__(self) -> None:
        checked_date(self.before)
        if self.most < 0:
            raise ValueError(f"most = {self.most}: give a number of tasks, or 0 for no limit")


@dataclass(frozen=True)
class Refreshed:
    """``made``: the round of new tasks; ``retired``: reason by name; ``since``: date from which commits were used."""

    made: Round
    retired: Mapping[str, str]
    since: str


async def refresh_benchmark(
    folder: Path,
    inputs: Inputs,
    retirement: Retirement,
    backend: Backend,
    layers: LayerStore,
    *,
    since: str = "",
    parallel: int = 0,
    progress: Progress | None = None,
) -> Refreshed:
    """Add tasks of commits from the date ``since`` on (default: that of the newest task), and retire old ones.

    The settings are those that the benchmark was built with. If ``inputs.sources`` is empty, those of the last build
    are used. Raises BenchmarkError if the benchmark is damaged, a locked task was changed or another process works in
    the folder, ValueError for a malformed date.
    """
    read_lock(folder)
    with locked(folder, busy(folder)):
        return await _refresh(
            folder, inputs, retirement, backend, layers, since=since, parallel=parallel, progress=progress
        )


async def _refresh(
    folder: Path,
    inputs: Inputs,
    retirement: Retirement,
    backend: Backend,
    layers: LayerStore,
    *,
    since: str,
    parallel: int,
    progress: Progress | None,
) -> Refreshed:
    lock = read_lock(folder)
    drop_unfinished(folder, len(lock.rounds) + 1, lock.tasks)
    tasks = verified(folder)
    try:
        settings = BenchmarkSettings.model_validate(lock.settings)
    except ValueError as error:
        raise BenchmarkError(f"{folder}: its settings cannot be read: {error}; build it into another folder") from None
    if parallel:
        settings = settings.model_copy(update={"parallel": parallel})
    since = checked_date(since) or max((entry.date[:10] for entry in lock.tasks.values()), default="")
    sources = tuple(inputs.sources) or lock.sources
    known = frozenset(entry.commit for entry in lock.tasks.values())
    made = Round(len(lock.rounds) + 1)
    try:
        wanted = replace(inputs, sources=sources)
        await run_round(made, wanted, settings, folder, backend, layers, since=since, known=known, progress=progress)
    except PackageError as error:
        made.tables.append(f"no new tasks: {error}")
    entries = {**lock.tasks, **made.entries}
    retired = old(entries, retirement)
    for name, why in retired.items():
        entries[name] = replace(entries[name], status=RETIRED, why=why)
    rounds = (*lock.rounds, summary(made, tuple(retired), since))
    write_lock(folder, Lock(entries, sources, lock.settings, rounds))
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # those of earlier rounds, too: a kill may have come after the lock was written
    for name in (name for name, entry in entries.items() if entry.status == RETIRED):
        task = tasks.get(name) or Task.load(folder / TASKS / name)
        note_mark(task, Mark("retired", entries[name].why, now))
    return Refreshed(made, retired, since)


def old(entries: Mapping[str, Entry], retirement: Retirement) -> dict[str, str]:
    """Return the tasks in use that must be retired, with reasons, oldest first."""
    used = [(name, entry) for name, entry in entries.items() if entry.status != RETIRED]
    newest = sorted(used, key=lambda pair: (pair[1].date, pair[0]), reverse=True)
    found: dict[str, str] = {}
    for place, (name, entry) in enumerate(newest):
        if retirement.before and entry.date < retirement.before:
            found[name] = f"its commit is of {entry.date[:10]}, before {retirement.before}"
        elif retirement.most and place >= retirement.most:
            found[name] = f"there are {retirement.most} newer ones"
    return dict(reversed(found.items()))
