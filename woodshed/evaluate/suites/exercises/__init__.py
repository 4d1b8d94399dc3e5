"""Tasks from collections of exercises that a person has on disk: a program to write or to mend, with its tests.

Exercises through the same trial as every other candidate: the example solution must pass, the start must not.

Collections of exercises as they lie on disk: Exercism's Python track (and polyglot sets like it), QuixBugs.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
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

_QUIXBUGS_TEST = '''"""Cases of {name}."""

import json
from pathlib import Path

import pytest
from {name} import {name}

_LINES = (Path(__file__).parent / "{name}.json").read_text().splitlines()
CASES = [json.loads(line) for line in _LINES if line.strip()]


@pytest.mark.parametrize("given, wanted", CASES)
def test_{name}(given, wanted):
    found = {name}(*given) if isinstance(given, list) else {name}(given)
    if hasattr(found, "__next__"):
        found = list(found)
    assert json.loads(json.dumps(found)) == wanted
'''


@dataclass(frozen=True)
class Exercise:
    """``start`` and ``gold`` have the same files; ``tests`` are laid beside them. Paths are relative to the workdir."""

    name: str
    instruction: str
    start: dict[str, bytes]
    gold: dict[str, bytes]
    tests: dict[str, bytes]


def read_exercism(folder: Path) -> Iterator[Exercise]:
    """Each exercise whose ``.meta/config.json`` names a Python solution, a test and an example."""
    for config in sorted(folder.rglob(".meta/config.json")):
        root = config.parent.parent
        files = _config(config).get("files", {})
        solution, tests, example = (files.get(key, []) for key in ("solution", "test", "example"))
        if not (solution and tests) or len(example) != len(solution) or not all(n.endswith(".py") for n in solution):
            continue
        docs = [root / ".docs" / name for name in ("introduction.md", "instructions.md", "instructions.append.md")]
        text = "\n\n".join(path.read_text("utf-8").strip() for path in docs if path.is_file())
        yield Exercise(
            root.name,
            f"{text}\n\nWrite it in {', '.join(f'`{n}`' for n in solution)}.\n",
            {name: _bytes(root / name) for name in solution},
            {name: _bytes(root / made) for name, made in zip(solution, example)},
            {name: _bytes(root / name) for name in tests},
        )


def read_quixbugs(folder: Path) -> Iterator[Exercise]:
    """Each Python program with cases in JSON; those that work on nodes of graphs have none."""
    for cases in sorted((folder / "json_testcases").glob("*.json")):
        name = cases.stem
        wrong, right = folder / "python_programs" / f"{name}.py", folder / "correct_python_programs" / f"{name}.py"
        if wrong.is_file() and right.is_file():
            test = _QUIXBUGS_TEST.format(name=name).encode()
            yield Exercise(
                name,
                f"`{name}.py` has a bug in one line. Find it and correct it.\n",
                {f"{name}.py": _bytes(wrong)},
                {f"{name}.py": _bytes(right)},
                {f"tests/test_{name}.py": test, f"tests/{name}.json": _bytes(cases)},
            )


READERS: dict[str, Callable[[Path], Iterator[Exercise]]] = {"exercism": read_exercism, "quixbugs": read_quixbugs}


def read_collection(source: str) -> tuple[str, str, list[Exercise]]:
    """(name, licence, exercises). Raises PackageError, which says what the folder should look like."""
    name, _, path = source.partition(":")
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise PackageError(f"{source}: no such folder; give the copy of the collection that you have")
    try:
        found = list(READERS[name](folder))
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"{source}: cannot be read ({error})") from None
    if not found:
        layout = {
            "exercism": "NAME/.meta/config.json with files.solution, files.test and files.example in Python",
            "quixbugs": "python_programs, correct_python_programs and json_testcases",
        }[name]
        raise PackageError(f"{source}: no exercise in it; expected {layout}")
    licences = {n: (folder / n).read_bytes() for n in _LICENCES if (folder / n).is_file()}
    return name, Project(licences).licence, found


def _config(path: Path) -> dict[str, dict[str, list[str]]]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise PackageError(f"{path}: not JSON ({error})") from None
    if not isinstance(found, dict) or not isinstance(found.get("files", {}), dict):
        raise PackageError(f"{path}: files must be an object")
    return found


def _bytes(path: Path) -> bytes:
    return path.read_bytes()


async def build_exercises(source: str, context: BuildContext) -> tuple[list[Task], PackageYield]:
    """Tasks of one collection (see ``read_collection``) under ``out``, at most ``tasks_per_package``; resumable.

    Its verdicts are put among the ``ledgers``, by its name.
    """
    settings, catalogue, backend, layers = context.settings, context.catalogue, context.backend, context.layers
    out, boxes, cache = context.out, context.boxes, context.cache
    start = perf_counter()
    name, licence, exercises = await asyncio.to_thread(read_collection, source)
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
            there += verdict.task is not None or verdict.why.startswith(LATER)  # nothing takes its place
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
