"""``woodshed benchmark build`` and ``refresh``: repositories and sessions in, locked tasks out.

A round builds candidates with the task factory (``rounds/NNN-sessions``, ``rounds/NNN-history``), gives each its query,
checks it, and adds it to the lock. The lock is written last: a killed round is repeated with the candidates that it
has built.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.record.atomic import locked
from woodshed.record.task import Task
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.report import BuildReport
from woodshed.tasks.packages.history import Commit
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.build import build_from_sources
from woodshed.tasks.sources.repository import Objects, git_command, git_environment, read_repository, write_bundle
from woodshed.tasks.sources.spec import SourceSpec, parse_source

from .ambiguity import Endpoint
from .assemble import choose, commits_of, entry_of, queries_of, write_task
from .checks import check, contaminated
from .lock import LOCK, TASKS, BenchmarkError, Entry, Lock, busy, write_lock
from .query import stated
from .sessions import Session
from .settings import BenchmarkSettings
from .trace import Traced, added_lines, trace, unix

ROUNDS = "rounds"
_STAGED = ".staged"
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Inputs:
    """Inputs of a round. ``corpus``: folders of training texts and training tasks; tasks contained in them are left
    out; ``endpoint``: where readings are sampled, None for nowhere."""

    sources: Sequence[str]
    sessions: Sequence[Session] = ()
    corpus: Sequence[Path] = ()
    endpoint: Endpoint | None = None


@dataclass
class Round:
    """Result of a round. ``entries``: the new tasks by name; ``left_out``: candidate -> why it is not in the benchmark;
    ``terse``: for every candidate whose tests could be read, the share of what the tests need that the terse query
    states; ``tables``: yield of the task factory; ``traced``: commits traced to sessions."""

    number: int
    entries: dict[str, Entry] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    terse: dict[str, float] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    traced: list[Traced] = field(default_factory=list)
    gates: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Candidate -> gates that failed on the finished task."""


async def build_benchmark(
    inputs: Inputs,
    settings: BenchmarkSettings,
    out: Path,
    backend: Backend,
    layers: LayerStore,
    progress: Progress | None = None,
) -> Round:
    """Build a benchmark in the folder ``out``. Raises BenchmarkError if the folder has one already or another process
    works in it, or if no task was made; PackageError if no source can be used; OSError if a corpus cannot be read."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, busy(out)):
        if (out / LOCK).exists():
            raise BenchmarkError(
                f"{out} holds a benchmark; add tasks with `woodshed benchmark refresh`, or choose another"
            )
        drop_unfinished(out, 1)
        made = await run_round(Round(1), inputs, settings, out, backend, layers, progress=progress)
        if not made.entries:
            why = "\n".join([*made.tables, *(f"{name}: {why}" for name, why in made.left_out.items())])
            raise BenchmarkError(f"no task was made\n{why}")
        sources = tuple(str(Path(text).absolute()) if Path(text).exists() else text for text in inputs.sources)
        write_lock(out, Lock(made.entries, sources, settings.model_dump(mode="json"), (summary(made),)))
    return made


def drop_unfinished(out: Path, number: int, locked: Collection[str] = ()) -> None:
    """Delete the tasks of round ``number`` that are not ``locked``: a kill left them, and the round makes them again
    from its candidates."""
    rounds = list((out / ROUNDS).glob(f"{number:03d}-*"))
    for place in (out / TASKS).glob("*"):
        if place.name not in locked and any((each / place.name / "task.toml").is_file() for each in rounds):
            shutil.rmtree(place)


def summary(made: Round, retired: Sequence[str] = (), since: str = "") -> dict[str, Any]:
    """Return the lock's record of a round."""
    return {
        "since": since,
        "added": sorted(made.entries),
        "retired": sorted(retired),
        "left_out": dict(sorted(made.left_out.items())),
    }


async def run_round(
    made: Round,
    inputs: Inputs,
    settings: BenchmarkSettings,
    out: Path,
    backend: Backend,
    layers: LayerStore,
    *,
    since: str = "",
    known: frozenset[str] = frozenset(),
    progress: Progress | None = None,
) -> Round:
    """Make the tasks of a round and write them below ``tasks/``; fill and return ``made``. ``known``: ids of commits
    that have a task already."""
    made.traced = await asyncio.to_thread(_traced, inputs, settings, since)
    by_commit = {each.commit.id: each for each in made.traced}
    candidates: list[tuple[Task, Commit]] = []
    new = tuple(id for id in by_commit if id not in known)
    passes = [("sessions", new, ())] if new else []
    for name, chosen, without in [*passes, ("history", (), tuple(sorted({*known, *by_commit})))]:
        place = out / ROUNDS / f"{made.number:03d}-{name}"
        report = BuildReport()
        wanted = settings.tasks(commits=chosen, without=without, since=since)
        try:
            tasks = await build_from_sources(inputs.sources, wanted, backend, layers, place, progress, report=report)
        except PackageError as error:
            if name == "history" and not candidates:
                raise
            made.tables.append(f"{name}: {error}")
            continue
        made.tables.append(report.table())
        commits = await asyncio.to_thread(commits_of, place)
        candidates += [(task, commits[task.info.provenance["commit"]]) for task in tasks]
    await _assemble(made, candidates, by_commit, inputs, settings, out, backend, layers, progress)
    return made


async def _assemble(
    made: Round,
    candidates: Sequence[tuple[Task, Commit]],
    traced: Mapping[str, Traced],
    inputs: Inputs,
    settings: BenchmarkSettings,
    out: Path,
    backend: Backend,
    layers: LayerStore,
    progress: Progress | None,
) -> None:
    """Give every candidate its query, check it, and move those that pass to ``tasks/``."""
    staged = out / _STAGED
    shutil.rmtree(staged, ignore_errors=True)
    (out / TASKS).mkdir(parents=True, exist_ok=True)
    drafts: list[Task] = []
    drafted: dict[str, str] = {}
    for task, commit in candidates:
        name = task.path.name
        if commit.id in drafted:  # of two sources that share a history, such as PATH and PATH@COMMIT
            made.left_out[name] = f"{drafted[commit.id]} is the same commit"
            continue
        queries = queries_of(task, commit, traced)
        terse = stated(queries.terse, task)
        if terse.score is not None:
            made.terse[name] = terse.score
        chosen = choose(queries, terse, task, settings)
        if isinstance(chosen, str):
            made.left_out[name] = chosen
            continue
        drafted[commit.id] = name
        drafts.append(write_task(task, staged / name, queries, chosen, traced.get(commit.id)))
    found = await asyncio.to_thread(contaminated, drafts, inputs.corpus, settings)
    turns, done = asyncio.Semaphore(settings.parallel), 0

    async def one(draft: Task) -> None:
        nonlocal done
        name = draft.path.name
        async with turns:
            checked = await check(out, draft, settings, backend, layers, inputs.endpoint)
        done += 1
        if progress:
            progress(done, len(drafts), f"{name}: {checked.failed or 'ok'}")
        made.gates[name] = checked.gates
        if checked.failed:
            made.left_out[name] = checked.failed
            return
        place = out / TASKS / name
        shutil.rmtree(place, ignore_errors=True)
        draft.path.rename(place)
        agreement = checked.agreement.agreement if checked.agreement else None
        made.entries[name] = entry_of(Task.load(place), agreement=agreement, round=made.number)

    for draft in drafts:
        if draft.name in found:
            held = found[draft.name]
            made.left_out[draft.path.name] = f"{held.share:.0%} of its {held.part} is in {held.text}"
    clean = [draft for draft in drafts if draft.name not in found]
    await asyncio.gather(*map(one, clean))
    shutil.rmtree(staged, ignore_errors=True)


def _traced(inputs: Inputs, settings: BenchmarkSettings, since: str) -> list[Traced]:
    """Return the commits of all sources that were written in the sessions."""
    if not inputs.sessions:
        return []
    start = math.floor(min(session.started for session in inputs.sessions))  # git notes whole seconds
    found: list[Traced] = []
    for spec in map(parse_source, inputs.sources):
        if spec.kind != "git":
            continue
        with tempfile.TemporaryDirectory(prefix="woodshed-trace-") as scratch:
            commit = read_repository(spec.place, spec.version).commit
            write_bundle(spec.place, commit, bundle := Path(scratch) / "history.bundle")
            objects = Objects(bundle)
            try:
                commits = [
                    c for c in objects.log(commit, first_parent=True) if _after(c, start, since or settings.since)
                ]
                added = [(c, tuple(added_lines(objects.diff(c.parent, c.id)))) for c in commits]
                names = [*objects.roots(commit), *names_of(spec)]
            finally:
                objects.close()
        found += trace(added, inputs.sessions, names, settings.trace)
    return found


def _after(commit: Commit, start: float, since: str) -> bool:
    return bool(commit.date) and unix(commit.date) >= start and commit.date >= since


def names_of(spec: SourceSpec) -> list[str]:
    """Return the names of a repository besides its root commits: its path or URL, and the URLs of its remotes."""
    names = [spec.place]
    if Path(spec.place).is_dir():
        more = ["-c", "safe.directory=*", "-C", spec.place]
        command = git_command("config", "--get-regexp", r"^remote\..*\.url$", more=more)
        done = subprocess.run(command, capture_output=True, check=False, env=git_environment())
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        names += [line.partition(" ")[2] for line in lines if " " in line]
    return names
