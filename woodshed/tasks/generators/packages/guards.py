"""The tests that a task requires: the whole suite if it is quick, else those nearest to the change.

A submission that repairs its own function and breaks another must not be rewarded. So a task requires the tests that
run the changed functions, then those that run anything in the changed modules, then those that run modules which import
these, then all others, as far as time and number allow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from woodshed.record.python_source import parse_python
from woodshed.tasks.packages.prepare import CoveredFunction, Suite

CHANGED, MODULE, IMPORTER, ELSEWHERE = range(4)


@dataclass(frozen=True)
class Guard:
    """The required ``tests``, nearest to the change first. ``scope``: ``suite`` if they are all stable tests,
    ``modules`` if they include all tests of the changed modules and of modules that import them, else ``part``.
    ``share``: share of the stable tests that are required."""

    tests: tuple[str, ...]
    scope: str
    share: float

    def quality(self, required: int, stable: int) -> dict[str, str]:
        """The entries of ``TaskInfo.quality`` for a task that requires ``required`` of ``stable`` tests."""
        return {"guard": self.scope, "guard_share": f"{required / max(1, stable):.2f}"}


def guard(
    suite: Suite,
    functions: Sequence[CoveredFunction],
    files: Iterable[str],
    imports: Imports,
    *,
    must: Sequence[str] = (),
    most: int,
    seconds: float,
) -> Guard:
    """The guard of a change to ``functions`` in ``files``: at most ``most`` tests that take at most ``seconds`` in all.

    Within a rank, every test is taken with one set of parameters before any is taken with a second. The tests ``must``
    come first, however long they take.
    """
    ranks = _ranks(suite, functions, set(files), imports)
    chosen = dict.fromkeys(must)
    spent = sum(suite.tests[test] for test in chosen)
    for rank in (CHANGED, MODULE, IMPORTER, ELSEWHERE):
        tests = [test for test in suite.tests if ranks[test] == rank and test not in chosen]
        taken = suite.fastest(tests, max(0, most - len(chosen)), seconds - spent, least=0 if chosen else 1)
        chosen |= dict.fromkeys(taken)
        spent += sum(suite.tests[test] for test in taken)
    scope = "part"
    if len(chosen) == len(suite.tests):
        scope = "suite"
    elif all(test in chosen for test, rank in ranks.items() if rank != ELSEWHERE):
        scope = "modules"
    return Guard(tuple(chosen), scope, len(chosen) / max(1, len(suite.tests)))


def _ranks(suite: Suite, functions: Sequence[CoveredFunction], files: set[str], imports: Imports) -> dict[str, int]:
    ranks = dict.fromkeys(suite.tests, ELSEWHERE)
    importers = imports.importers(files)
    for test in ranks:
        if test.partition("::")[0] in importers:
            ranks[test] = IMPORTER
    for function in suite.functions:
        rank = MODULE if function.module in files else IMPORTER if function.module in importers else ELSEWHERE
        for test in function.tests:
            ranks[test] = min(ranks[test], rank)
    for function in functions:
        ranks |= {test: CHANGED for test in function.tests if test in ranks}
    return ranks


@dataclass(frozen=True)
class Imports:
    """The import graph of a workspace. ``path``: import roots, as in ``Package``."""

    workspace: Mapping[str, bytes] = field(repr=False)
    path: tuple[str, ...]

    def importers(self, files: Iterable[str]) -> frozenset[str]:
        """Files that import one of ``files``, directly or through others, without ``files`` themselves.

        Imports by an ``__init__.py`` are not followed: everything in a package imports it.
        """
        found, queue = set[str](), list(files)
        first = frozenset(queue)
        while queue:
            for name in self._importing.get(queue.pop(), ()):
                if name not in found and PurePosixPath(name).name != "__init__.py":
                    found.add(name)
                    queue.append(name)
        return frozenset(found) - first

    @cached_property
    def _importing(self) -> dict[str, set[str]]:
        """file -> files that import it."""
        files = {name: file for file in self.workspace for name in self._names(file)}
        table: dict[str, set[str]] = {}
        for file, data in self.workspace.items():
            own = next(iter(self._names(file)), "")
            for name in _imported(data, own, PurePosixPath(file).name == "__init__.py") if own else ():
                if (target := files.get(name)) is not None and target != file:
                    table.setdefault(target, set()).add(file)
        return table

    def _names(self, file: str) -> list[str]:
        """Dotted names under which a file can be imported, the shortest first."""
        if not file.endswith(".py"):
            return []
        names = []
        for root in self.path:
            prefix = "" if root == "." else f"{root}/"
            if file.startswith(prefix):
                parts = PurePosixPath(file.removeprefix(prefix)).with_suffix("").parts
                names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
        return sorted(filter(None, names), key=len)


def _imported(data: bytes, own: str, is_package: bool) -> set[str]:
    """Dotted names that a module imports anywhere; a name may be a module or an attribute of one."""
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError):
        return set()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = own.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, *filter(None, [base])])
            found |= {base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)}
    return found - {""}
