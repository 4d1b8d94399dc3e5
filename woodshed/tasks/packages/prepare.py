"""Run a package's own suite: which tests are stable, how long each takes, and which functions each one runs.

The runs are in one box: in order with every function call traced, then in the opposite order untraced, a quick suite
several times. A test counts only if it passes every time. Results are cached on disk, by everything that they depend
on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from woodshed.grading.pytest_grader import run_pytest
from woodshed.grading.pytest_phases import BUSY
from woodshed.grading.results import TestResult, TestRun
from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox
from woodshed.sandbox.services import create_box
from woodshed.tasks.languages.python import function_spans

from .catalogue import Catalogue, Package
from .dependencies import python_path
from .index import PackageError
from .workspace import is_source, is_test, workspace_of

_VERSION = 8  # raise it when the meaning of a stored suite changes
WORKDIR = "/workspace"
SUITE_SECONDS = 300.0
"""Default limit of one run of a whole suite."""
_TEST_SECONDS = 20.0
_RERUNS, _RERUN_SECONDS = 3, 5.0
"""Maximum number of untraced runs of a suite, and the seconds of all of them after which no other begins."""


@dataclass(frozen=True)
class CoveredFunction:
    """A function that stable tests run. ``name`` is qualified (``Class.method``); lines are 1-based, inclusive.
    ``at_import``: it also runs at import, so without it no test can run."""

    module: str
    name: str
    line: int
    end_line: int
    statements: int
    tests: tuple[str, ...]
    at_import: bool = False

    @property
    def place(self) -> str:
        """``module:name``, as it is written in provenances."""
        return f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Suite:
    """A suite that was run. ``tests``: id of each stable test -> seconds (``coarse``). ``unstable``: id -> why it does
    not count. ``seconds``: of both runs. ``problems``: what could not be collected."""

    package: str
    tests: dict[str, float]
    functions: tuple[CoveredFunction, ...]
    unstable: dict[str, str]
    seconds: float
    problems: str = ""

    def fastest(self, tests: Iterable[str], most: int, max_seconds: float, *, least: int = 1) -> list[str]:
        """At most ``most`` of the ``tests`` that take at most ``max_seconds`` in all, but at least ``least`` tests.

        The fastest come first, and one set of parameters of every test before a second one of any.
        """
        seen: Counter[str] = Counter()
        ranked: list[tuple[int, float, str]] = []
        for test in sorted(tests, key=lambda t: (self.tests[t], t)):
            name = test.partition("[")[0]
            ranked.append((seen[name], self.tests[test], test))
            seen[name] += 1
        chosen: list[str] = []
        total = 0.0
        for _, seconds, test in sorted(ranked)[:most]:
            total += seconds
            if len(chosen) >= least and total > max_seconds:
                break
            chosen.append(test)
        return chosen


def unused_tests(suite: Suite) -> list[str]:
    """Notes about tests that cannot be used, for the report of a build; tests that are skipped need none."""
    notes = []
    if suite.problems:
        notes.append(f"test files that cannot be used: {' '.join(suite.problems.split())[:400]}")
    failing = {test: why for test, why in suite.unstable.items() if not why.startswith("skipped")}
    for test, why in list(failing.items())[:1]:
        shown = f"such as {test}: {' '.join(why.split())}"
        notes.append(f"tests that do not pass twice in the box are not used ({len(failing)}), {shown}")
    return notes


class SuiteError(PackageError):
    """A suite cannot be used; ``text`` is the whole output of pytest about it."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


def package_spec(
    package: Package, layers: tuple[Path, ...], files: Mapping[str, bytes], seconds: float = SUITE_SECONDS
) -> BoxSpec:
    """The spec of a box with the dependencies as layers and ``files`` (relative to the workdir) in the workspace.

    ``seconds``: limit of one run of the suite; the box has processor time for three.
    """
    return BoxSpec(
        layers=layers,
        files={f"{WORKDIR}/{name}": data for name, data in files.items()},
        workdir=WORKDIR,
        env={"PYTHONPATH": ":".join(python_path(package, WORKDIR)), "PYTHONDONTWRITEBYTECODE": "1"},
        limits=Limits(cpu_seconds=max(900.0, 3 * seconds)),
        egress=Egress() if package.start else None,
    )


def suite_files(package: Package, workspace: Mapping[str, bytes]) -> list[str]:
    """Test roots to pass to pytest, including files that pytest would not collect by name."""
    roots = [root for root in package.tests if not root.endswith("conftest.py")]
    return [root for root in roots if any(n == root or n.startswith(root + "/") for n in workspace)]


async def run_suite(
    box: Sandbox, package: Package, workspace: Mapping[str, bytes], *, trace: bool, seconds: float = SUITE_SECONDS
) -> TestRun:
    """Run the whole suite in a box: traced and in order, or untraced in the opposite order; ``seconds``: its limit."""
    roots = [f"{WORKDIR}/{root}" for root in package.sources] if trace else []
    return await run_pytest(
        box,
        suite_files(package, workspace),
        None,
        path=python_path(package, WORKDIR),
        workdir=WORKDIR,
        timeout=seconds,
        test_timeout=_TEST_SECONDS,
        reverse=not trace,
        trace=roots,
    )


async def prepare(
    package: Package,
    catalogue: Catalogue,
    files: dict[str, bytes],
    backend: Backend,
    layers: tuple[Path, ...],
    *,
    cache: Path | None = None,
    seconds: float = SUITE_SECONDS,
) -> Suite:
    """The suite of a package, from the cache or by running it in a box; the first run is cached by itself too.

    ``files``: those of the source distribution; ``layers``: host folders of its dependencies; ``seconds``: limit of one
    run. Raises SuiteError if the suite does not run to its end or no test passes every time.
    """
    target = (cache or cache_directory()) / "suites" / f"{package.name}-{_key(package, catalogue)}.json"
    if target.is_file():
        return load_suite(target)
    workspace = workspace_of(package, files)
    half = target.with_suffix(".traced.json")
    first, others = _read_run(half), []
    box = await create_box(backend, package_spec(package, layers, workspace, seconds), package.start)
    try:
        if first is None:
            first = await run_suite(box, package, workspace, trace=True, seconds=seconds)
            if first.complete:
                write_whole(half, json.dumps(asdict(first)))
        if first.complete:
            others = await reruns(lambda: run_suite(box, package, workspace, trace=False, seconds=seconds))
    finally:
        await box.close()
    for run in (first, *others):
        if not run.complete:
            raise SuiteError(f"{package.name} {package.version}: {_incomplete(run)}", run.detail)
    suite = _suite(package, workspace, first, others)
    if not suite.tests:
        why = first.detail or next(iter(suite.unstable.values()), "no test was collected")
        text = "\n".join([first.detail, *suite.unstable.values()])
        raise SuiteError(f"{package.name} {package.version}: no test passes in the box: {why}", text)
    write_whole(target, json.dumps(asdict(suite)))
    half.unlink(missing_ok=True)
    return suite


def _read_run(path: Path) -> TestRun | None:
    """The run that an earlier start wrote; None if there is none or it cannot be read."""
    try:
        table = json.loads(path.read_text("utf-8"))
        places = [[(str(f), str(n), int(line)) for f, n, line in r["covered"]] for r in table["results"].values()]
        results = {
            test: TestResult(**{**row, "covered": covered})
            for (test, row), covered in zip(table.pop("results").items(), places)
        }
        problems, imported = tuple(table.pop("problems")), tuple(map(tuple, table.pop("imported")))
        return TestRun(results, **table, problems=problems, imported=imported)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


async def reruns(run: Callable[[], Awaitable[TestRun]]) -> list[TestRun]:
    """Run a suite again, a quick one several times: a test that fails now and then must not be required."""
    runs = [await run()]
    while len(runs) < _RERUNS and runs[-1].complete and sum(each.seconds for each in runs) < _RERUN_SECONDS:
        runs.append(await run())
    return runs


def stable_tests(first: TestRun, others: Sequence[TestRun]) -> tuple[dict[str, float], dict[str, str]]:
    """Return (test that passed every time -> coarse seconds, other test -> why it does not count)."""
    stable: dict[str, float] = {}
    unstable: dict[str, str] = {}
    for test, result in first.results.items():
        again = [other.results.get(test) for other in others]
        bad = next((each for each in again if each is None or each.status != "passed"), again[0])
        if result.status == "passed" and bad is not None and bad.status == "passed":
            stable[test] = min(coarse(cost(each)) for each in again if each is not None)
        else:
            unstable[test] = f"{result.status}, then {bad.status if bad else 'missing'}: {result.text[:120]}"
    return stable, unstable


def _suite(package: Package, workspace: Mapping[str, bytes], first: TestRun, others: Sequence[TestRun]) -> Suite:
    stable, unstable = stable_tests(first, others)
    imported = {(file.removeprefix(WORKDIR + "/"), name) for file, name, _ in first.imported}
    covering: dict[tuple[str, str], list[str]] = {}
    for test in stable:
        for file, name, _ in first.results[test].covered:
            covering.setdefault((file.removeprefix(WORKDIR + "/"), name), []).append(test)
    functions = []
    for module in sorted(n for n in workspace if is_source(package, n) and not is_test(package, n)):
        try:
            spans = function_spans(workspace[module].decode())
        except SyntaxError:
            continue  # written for another version of Python
        names = [span.name for span in spans]
        for span in spans:
            tests = covering.get((module, span.name))
            if tests and names.count(span.name) == 1:  # a property's setter shares its name with the getter
                functions.append(
                    CoveredFunction(
                        module=module,
                        name=span.name,
                        line=span.line,
                        end_line=span.end_line,
                        statements=span.statements,
                        tests=tuple(tests),
                        at_import=(module, span.name) in imported,
                    )
                )
    return Suite(
        package=package.name,
        tests=stable,
        functions=tuple(functions),
        unstable=unstable,
        seconds=first.seconds + others[0].seconds,
        problems=first.detail,
    )


def cost(result: TestResult) -> float:
    """Estimated seconds of a test on an idle machine: its processor time, but at least an eighth of its wall time,
    during which it may have slept."""
    return result.seconds if result.cpu is None else max(result.cpu, result.seconds / BUSY)


def coarse(seconds: float) -> float:
    """Round up to 1.25 ms times a power of four, so that the tests that a task requires do not depend on noise."""
    step = 0.00125
    while step < seconds:
        step *= 4
    return round(step, 5)


def _incomplete(run: TestRun) -> str:
    if not run.results and run.detail.startswith("status 5"):
        return "pytest collects no test from it"
    if run.detail.startswith("timed out"):
        return f"its suite {run.detail}: allow more with --suite-seconds, or leave slow tests out with --markers"
    return f"its suite did not run to the end: {run.detail}"


def _key(package: Package, catalogue: Catalogue) -> str:
    wheels = [w.sha256 for _, group in catalogue.wheels_of(package) for w in group]
    python = ".".join(map(str, sys.version_info[:3]))
    return hashlib.sha256(repr((_VERSION, package, wheels, python)).encode()).hexdigest()[:16]


def load_suite(path: Path) -> Suite:
    """A suite that ``prepare`` wrote."""
    table = json.loads(path.read_text("utf-8"))
    functions = tuple(CoveredFunction(**{**f, "tests": tuple(f["tests"])}) for f in table.pop("functions"))
    return Suite(functions=functions, **table)
