"""Goals by rules: commands that the project's files name, with the output that such commands print if they work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from woodshed.grading.install.goal import Goal
from woodshed.tasks.install.kit import PROPOSED
from woodshed.tasks.install.space import Ground
from woodshed.tasks.sources.project import Project

_PASSED = r"\b[1-9]\d* passed\b"
_PYTEST = "python3 -m pytest -q -o addopts= --continue-on-collection-errors"
_RUN = re.compile(r"^\s*(?:-\s*)?(?:run:\s*)?(?:python3? -m )?(pytest|unittest)\b([\w ./=:-]*)$", re.MULTILINE)
_CI = re.compile(r"\.github/workflows/[^/]+\.ya?ml|\.gitlab-ci\.yml|\.travis\.yml|tox\.ini|Makefile")
_ASKS = re.compile(rb"importlib[._]metadata|importlib import metadata|pkg_resources")


def python_goals(ground: Ground) -> list[Goal]:
    """At most ``PROPOSED`` goals with distinct commands."""
    found: dict[str, Goal] = {}
    for values in _goals(ground):
        with suppress(ValueError):  # the paths make the command too long
            goal = Goal(**values)
            found.setdefault(goal.command, goal)
    return list(found.values())[:PROPOSED]


def _goals(ground: Ground) -> Iterator[dict[str, Any]]:
    package = ground.package
    roots = [root for root in package.tests if not root.endswith("conftest.py")]
    whole = " ".join(map(shlex.quote, roots))
    yield _suite(ground, whole if len(whole) < 300 else "", "the whole suite")
    for root in package.sources[:2]:
        name = PurePosixPath(root).name.removesuffix(".py")
        if not name.isidentifier() or str(PurePosixPath(root).parent) not in package.path:
            continue  # it cannot be imported by this name
        yield {
            "command": f"python3 -c 'import {name}; print({name}.__name__)'",
            "expect": f"The package {name} imports; its name is printed on a line of its own.",
            "pattern": f"^{name}$",
        }
        if f"{root}/__main__.py" in ground.files:
            yield {
                "command": f"python3 -m {name} --help",
                "expect": "Its command line explains how it is used.",
                "pattern": r"(?i)\busage\b|^options:",
            }
    if any(_ASKS.search(data) for name, data in ground.files.items() if _is_code(name, package.sources)):
        own = ground.names[-1]
        yield {
            "command": f"""python3 -c 'import importlib.metadata as m; print("version", m.version("{own}"))'""",
            "expect": f"The project {own} finds its own version in its installed metadata.",
            "pattern": r"^version \d",
        }
    yield from _stated(ground)
    modules = [n for n in ground.files if _is_test(n) and _below(n, roots)]
    for module in sorted(modules, key=lambda n: (-len(ground.files[n]), n)):
        yield _suite(ground, shlex.quote(module), f"the tests of {module}")


def _stated(ground: Ground) -> Iterator[dict[str, Any]]:
    """Goals from test commands in CI files, without options that need a plugin."""
    known = {*ground.files, *(str(parent) for name in ground.files for parent in PurePosixPath(name).parents)}
    for file in sorted(n for n in ground.files if _CI.fullmatch(n)):
        text = Project(ground.files).text(file)
        for kind, rest in _RUN.findall(text):
            words = [w for w in rest.split() if w.rstrip("/") in known]
            if kind == "pytest" and words:
                yield _suite(ground, " ".join(map(shlex.quote, words)), f"the tests that {file} runs")
            elif kind == "unittest" and "discover" in rest.split():
                yield {
                    "command": f"python3 -m unittest {rest.strip()}",
                    "expect": f"As {file} runs them, all unit tests pass.",
                    "pattern": r"^OK\b",
                }


def _suite(ground: Ground, what: str, words: str) -> dict[str, Any]:
    share = ground.passing_share
    command = " ".join([_PYTEST, *map(shlex.quote, ground.package.options), *filter(None, [what])])
    return {
        "command": command,
        "pattern": _PASSED,
        "exit_codes": (0, 1, 2),
        "passing_share": share,
        "expect": f"pytest runs {words} and reports at least {share:.0%} of them as passed.",
    }


def _is_test(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and (path.stem.startswith("test_") or path.stem.endswith("_test"))


def _is_code(name: str, roots: tuple[str, ...]) -> bool:
    return name.endswith(".py") and _below(name, list(roots))


def _below(name: str, roots: list[str]) -> bool:
    return any(name == root or name.startswith(root.rstrip("/") + "/") for root in roots)
