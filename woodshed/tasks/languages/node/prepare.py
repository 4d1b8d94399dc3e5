"""Run the suite of a Node project: as for Python, two runs in one box, the first with V8's precise coverage.

Every test file runs in a separate process; its framework decides the order within it. Results are cached on disk, by
everything that they depend on.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache as cached
from pathlib import Path

from woodshed.grading.node.grader import run_node
from woodshed.grading.results import TestRun
from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.sandbox.guest.template import command_path
from woodshed.sandbox.protocol import Backend, BoxSpec, Limits
from woodshed.tasks.packages.catalogue import Catalogue, Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import (
    SUITE_SECONDS,
    WORKDIR,
    CoveredFunction,
    Suite,
    SuiteError,
    load_suite,
    reruns,
    stable_tests,
)

from .functions import JsFunction, functions_of
from .project import test_files
from .workspace import is_source, workspace_of

_VERSION = 3  # raise it when the meaning of a stored suite changes


def package_spec(
    package: Package, layers: tuple[Path, ...], files: Mapping[str, bytes], seconds: float = SUITE_SECONDS
) -> BoxSpec:
    """The spec of a box with the modules as layers and ``files`` (relative to the workdir) in the workspace."""
    return BoxSpec(
        layers=layers,
        files={f"{WORKDIR}/{name}": data for name, data in files.items()},
        workdir=WORKDIR,
        limits=Limits(cpu_seconds=max(900.0, 3 * seconds)),
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
    """The suite of a project, from the cache or by running it in a box.

    ``seconds``: limit of one run. Raises SuiteError if the suite does not run to its end or no test passes every time,
    PackageError without Node.
    """
    folder = (cache or cache_directory()) / "suites"
    target = folder / f"{package.name}-{await asyncio.to_thread(_key, package, catalogue)}.json"
    if target.is_file():
        return load_suite(target)
    workspace = workspace_of(package, files)
    tests = test_files(workspace, package.tests)
    roots = [f"{WORKDIR}/{root}" for root in package.sources]
    box = await backend.create(package_spec(package, layers, workspace, seconds))
    try:
        first = await run_node(box, tests, None, workdir=WORKDIR, timeout=seconds, test_timeout=20, trace=roots)
        others = await reruns(lambda: run_node(box, tests, None, workdir=WORKDIR, timeout=seconds, test_timeout=20))
    finally:
        await box.close()
    stable, unstable = stable_tests(first, others)
    if not stable:
        why = first.detail or next(iter(unstable.values()), "no test was found")
        text = "\n".join([first.detail, *unstable.values()])
        raise SuiteError(f"{package.name} {package.version}: no test passes in the box: {why[:600]}", text)
    functions = _covered(package, workspace, first, stable)
    suite = Suite(
        package=package.name,
        tests=stable,
        functions=functions,
        unstable=unstable,
        seconds=first.seconds + others[0].seconds,
        problems=first.detail,
    )
    write_whole(target, json.dumps(asdict(suite)))
    return suite


def _covered(
    package: Package, workspace: Mapping[str, bytes], run: TestRun, stable: Mapping[str, float]
) -> tuple[CoveredFunction, ...]:
    """Functions that stable tests run, matched to those of V8 by their end."""
    ran: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for test in stable:
        for file, place, _ in run.results[test].covered:
            start, _, end = place.partition(":")
            ran.setdefault((file.removeprefix(WORKDIR + "/"), int(end)), []).append((int(start), test))
    functions = []
    for module in sorted(n for n in workspace if is_source(package, n)):
        try:
            spans = functions_of(workspace[module])
        except SyntaxError:
            continue  # TypeScript or Flow in a .js file
        names = [span.name for span in spans]
        for span in spans:
            # V8 lets some forms start at their parameters; an outer function with the same end starts earlier.
            tests = [t for start, t in ran.get((module, span.end), ()) if start >= span.start]
            if tests and names.count(span.name) == 1 and not _is_wrapper(span, spans):
                covering = tuple(dict.fromkeys(tests))
                functions.append(
                    CoveredFunction(
                        module=module,
                        name=span.name,
                        line=span.line,
                        end_line=span.end_line,
                        statements=span.statements,
                        tests=covering,
                    )
                )
    return tuple(functions)


def _is_wrapper(span: JsFunction, spans: Sequence[JsFunction]) -> bool:
    """Return whether a function is the scope of a module (UMD, a factory): it holds most other functions."""
    inside = sum(span.start < other.start and other.end <= span.end for other in spans)
    return inside >= 2 and 2 * inside >= len(spans) - 1


def _key(package: Package, catalogue: Catalogue) -> str:
    modules = [m.integrity for m in catalogue.modules.get(package.name, ())]
    return hashlib.sha256(repr((_VERSION, package, modules, node_version())).encode()).hexdigest()[:16]


@cached
def node_version() -> str:
    """Version of Node in boxes. Raises PackageError if there is none or it is older than 20."""
    try:
        said = subprocess.run(
            ["/usr/bin/env", "-i", f"PATH={command_path()}", "node", "--version"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        said = None
    version = said.stdout.strip().removeprefix("v") if said is not None and said.returncode == 0 else ""
    if not version or int(version.partition(".")[0]) < 20:
        raise PackageError(
            f"Node projects need Node.js 20 or newer below /usr, which boxes see; found {version or 'none'}"
        )
    return version
