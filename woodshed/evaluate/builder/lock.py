"""The lock of a benchmark: its tasks with their state and a hash of everything in each.

Results are comparable only if they are of the same tasks, so a task that was changed after it was locked is refused.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.task import Task, TaskError
from woodshed.record.toml import to_toml

LOCK = "benchmark.lock"
TASKS = "tasks"
IN_USE, RETIRED = "in use", "retired"
_HEAD = "# Locks the tasks of this benchmark. Written by `woodshed benchmark`; do not edit.\n"


class BenchmarkError(Exception):
    """A benchmark cannot be built or used; the message says what is wrong and what to do."""


def busy(folder: Path) -> BenchmarkError:
    """Return the error for a folder in which another process builds or refreshes."""
    return BenchmarkError(f"another process builds or refreshes {folder}; wait for it, or choose another folder")


@dataclass(frozen=True)
class Entry:
    """A locked task. ``digest``: ``Task.digest``; ``commit`` and ``date``: of its solution; ``origin``: ``history`` or
    ``session``; ``query``: level of its query; ``stated``: share of what the tests need that the query states, by
    rules, -1 if the tests could not be read; ``agreement``: of solutions sampled from the query, -1 if none were;
    ``round``: number of the build or refresh that added it; ``why``: reason why it was retired."""

    digest: str
    source: str
    commit: str
    date: str
    origin: str
    query: str
    changed_lines: int
    prompt_chars: int
    stated: float = -1.0
    agreement: float = -1.0
    round: int = 1
    status: str = IN_USE
    why: str = ""


@dataclass(frozen=True)
class Lock:
    """Content of the lock. ``tasks``: entry by folder below ``tasks/``. ``sources`` and ``settings``: used by a
    refresh. ``rounds``: for each build and refresh, what it added, retired and left out."""

    tasks: Mapping[str, Entry]
    sources: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    rounds: tuple[Mapping[str, Any], ...] = ()

    @property
    def in_use(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.tasks.items() if entry.status == IN_USE}


def write_lock(folder: Path, lock: Lock) -> None:
    table = {
        "sources": list(lock.sources),
        "settings": dict(lock.settings),
        "rounds": {str(number): dict(each) for number, each in enumerate(lock.rounds, 1)},
        "tasks": {name: asdict(lock.tasks[name]) for name in sorted(lock.tasks)},
    }
    write_whole(folder / LOCK, _HEAD + to_toml(table))


def read_lock(folder: Path) -> Lock:
    """Read the lock of a benchmark. Raises BenchmarkError if there is none or it is damaged."""
    path = folder / LOCK
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BenchmarkError(f"{folder}: no {LOCK}; build a benchmark there with `woodshed benchmark build`") from None
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path}: {error}; restore it, or build into another folder") from None
    try:
        tasks = {name: Entry(**_known(entry)) for name, entry in table.get("tasks", {}).items()}
        rounds = table.get("rounds", {})
        ordered = tuple(rounds[key] for key in sorted(rounds, key=int))
    except (TypeError, ValueError, AttributeError) as error:
        raise BenchmarkError(f"{path}: {error}; restore it, or build into another folder") from None
    return Lock(tasks, tuple(table.get("sources", ())), table.get("settings", {}), ordered)


def load_benchmark(folder: Path) -> list[Task]:
    """Return the tasks of a benchmark that are in use, sorted by name.

    Raises BenchmarkError if a task is missing, was changed since it was locked, or is not in the lock.
    """
    lock = read_lock(folder)
    found = _verified(folder, lock)
    return [found[name] for name in sorted(lock.in_use)]


def _verified(folder: Path, lock: Lock) -> dict[str, Task]:
    there = {path.parent.name for path in (folder / TASKS).glob("*/task.toml")}
    if strange := sorted(there - lock.tasks.keys()):
        raise BenchmarkError(
            f"{folder / TASKS / strange[0]} is not in {LOCK}: tasks come in by `woodshed benchmark refresh` only; "
            "repeat it if it was interrupted, or move the folder out of the benchmark"
        )
    tasks: dict[str, Task] = {}
    for name, entry in lock.tasks.items():
        place = folder / TASKS / name
        try:
            task = Task.load(place)
            digest = task.digest
        except TaskError as error:
            raise BenchmarkError(f"{error}; {LOCK} has this task: restore it") from None
        if digest != entry.digest:
            raise BenchmarkError(
                f"{place} was changed since it was locked (sha256 {digest[:12]}, locked {entry.digest[:12]}): results "
                "on it would not compare with earlier ones; restore it, or build the benchmark into another folder"
            )
        tasks[name] = task
    return tasks


def verified(folder: Path) -> dict[str, Task]:
    """Return all tasks of a benchmark, including retired ones, by the name of their folder. Raises BenchmarkError like
    ``load_benchmark``."""
    return _verified(folder, read_lock(folder))


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the number of tasks by origin."""
    found = {"history": 0, "session": 0}
    for entry in entries:
        found[entry.origin] += 1
    return found


def _known(entry: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(Entry)}
    if unknown := sorted(set(entry) - names):
        raise ValueError(f"unknown field {unknown[0]!r}")
    return dict(entry)
