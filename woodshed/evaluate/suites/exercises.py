"""Tasks from collections of exercises that the user has on disk: a program to write or to fix, with its tests.

Exercises go through the same trial as every other candidate: the example solution must pass, the start must not.
Each collection has its own reader (``exercism.py``, ``quixbugs.py``, ``humaneval.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

from woodshed.record.task import Task
from woodshed.tasks.generators.changes.candidates import Candidate
from woodshed.tasks.generators.changes.partition import unplanned
from woodshed.tasks.generators.packages.proof import GATES
from woodshed.tasks.generators.packages.report import Ledger, PackageYield, Rejected
from woodshed.tasks.generators.packages.stream import Attempt, Stream
from woodshed.tasks.generators.packages.trial import Trial
from woodshed.tasks.generators.packages.work import LATER
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.dependencies import dependency_layers
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import CoveredFunction, Suite
from woodshed.tasks.packages.workspace import pytest_ini
from woodshed.tasks.pipeline.build import BuildContext
from woodshed.tasks.sources.project import Project
from woodshed.tasks.validate.splits import HELDOUT

_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "COPYING")


@dataclass(frozen=True)
class Exercise:
    """One exercise. ``start`` and ``gold``: initial and solved version of the same files; ``tests``: further files.
    Paths are relative to the workdir."""

    name: str
    instruction: str
    start: dict[str, bytes]
    gold: dict[str, bytes]
    tests: dict[str, bytes]


@dataclass(frozen=True)
class ExerciseCollection:
    """One published collection. ``read`` yields the exercises of a local copy and may raise PackageError; ``layout``
    says what a copy looks like."""

    name: str
    read: Callable[[Path], Iterator[Exercise]]
    layout: str

    async def __call__(self, source: str, context: BuildContext) -> tuple[list[Task], PackageYield]:
        """Build the tasks of the collection (``BuildCollection``)."""
        return await build_exercises(self, source, context)


def read_collection(collection: ExerciseCollection, source: str) -> tuple[str, list[Exercise]]:
    """Return (licence, exercises) of ``NAME:PATH``. Raises PackageError, which says what the copy should look like."""
    place = Path(source.partition(":")[2]).expanduser()
    if not place.exists():
        raise PackageError(f"{source}: no such folder; give the copy of the collection that you have")
    try:
        found = list(collection.read(place))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise PackageError(f"{source}: cannot be read ({error})") from None
    if not found:
        raise PackageError(f"{source}: no exercise in it; expected {collection.layout}")
    folder = place if place.is_dir() else place.parent
    licences = {n: (folder / n).read_bytes() for n in _LICENCES if (folder / n).is_file()}
    return Project(licences).licence, found


async def build_exercises(
    collection: ExerciseCollection, source: str, context: BuildContext
) -> tuple[list[Task], PackageYield]:
    """Build the tasks of one collection (see ``read_collection``) under ``out``, at most ``tasks_per_package``;
    resumable.

    The ledger of its verdicts is added to ``context.ledgers``, under its name.
    """
    settings, catalogue, backend, layers = context.settings, context.catalogue, context.backend, context.layers
    out, boxes, cache = context.out, context.boxes, context.cache
    start = perf_counter()
    name = collection.name
    licence, exercises = await asyncio.to_thread(read_collection, collection, source)
    line = PackageYield(name, functions=len(exercises))
    made: list[Task] = []

    def attempt(exercise: Exercise) -> Attempt:
        package = catalogue.furnished(_package(name, licence, exercise))
        slug = f"{name}-{exercise.name.replace('_', '-')}"
        names = dependency_layers(catalogue, package, layers, cache=cache)
        files = {**exercise.gold, **exercise.tests, "pytest.ini": pytest_ini(package)}
        trial = Trial(
            settings, package, Suite(package.name, {}, (), {}, 0.0), files, backend, layers, names, context.writer
        )
        return Attempt(f"{slug}-exercise-{package.sha256[:8]}", "exercise", partial(_run, trial, exercise))

    asked = f"{GATES}:{settings.test_timeout_sec}:{settings.max_tests}:{settings.mutants}"
    ledger = context.ledgers[name] = Ledger(out / f".{name}.jsonl", asked)
    stream, there = Stream(ledger, out, boxes, settings.parallel), 0
    async with aclosing(stream.judged(map(attempt, exercises))) as verdicts:
        async for verdict in verdicts:
            line.tried += 1
            line.count("exercise", verdict.task is not None)
            if verdict.task is None:
                line.rejected[verdict.why] += 1
            else:
                made.append(verdict.task)
            there += verdict.task is not None or verdict.why.startswith(LATER)  # it is not replaced by another
            context.progress(line.tried, len(exercises), f"{verdict.slug}: {verdict.why or 'kept'}")
            if there == settings.tasks_per_package:
                break
    line.kept, line.seconds, line.finished = len(made), perf_counter() - start, True
    return made, line


async def _run(trial: Trial, exercise: Exercise, out: Path) -> Task:
    package = trial.package
    try:
        trial.suite = await trial.stable_suite(package.tests)
        if not trial.suite.tests:
            raise Rejected("no test of the example solution passes twice")
        function = CoveredFunction(package.sources[0], exercise.name, 1, 1, 0, tuple(trial.suite.tests))
        whole = package.origin.partition(":")[0] in trial.settings.heldout_packages
        split = HELDOUT if whole else unplanned(trial.settings, package.name).of(function)
        return await trial.run(
            Candidate(
                package.name, function, "exercise", "exercise", exercise.start, 0, split, text=exercise.instruction
            ),
            out,
        )
    finally:
        await trial.close()


def _package(collection: str, licence: str, exercise: Exercise) -> Package:
    every = {**exercise.start, **exercise.gold, **exercise.tests}
    digest = hashlib.sha256(b"".join(n.encode() + b"\0" + d for n, d in sorted(every.items()))).hexdigest()
    tests = tuple(sorted({n.partition("/")[0] if "/" in n else n for n in exercise.tests}))
    return Package(
        f"{collection}-{exercise.name}",
        "1",
        "",
        digest,
        licence,
        tuple(exercise.gold),
        tests,
        (".",),
        origin=f"{collection}:{exercise.name}",
    )
