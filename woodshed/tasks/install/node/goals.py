"""Goals of a Node project by rule: its suite and the parts of it, its own test script, that it can be loaded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from woodshed.grading.install.goal import Goal
from woodshed.grading.node.run import framework_of
from woodshed.tasks.install.goals import PROPOSED
from woodshed.tasks.install.space import Ground
from woodshed.tasks.languages.node.project import NodeProject, test_files

_RUN = {
    "mocha": "node node_modules/mocha/bin/mocha.js --no-config", "tape": "node node_modules/tape/bin/tape",
    "node:test": "node --test",
}  # fmt: skip
_PASSED = {"mocha": r"^\s*[1-9]\d* passing\b", "tape": r"^# pass +[1-9]", "node:test": r"^\S pass [1-9]"}
_BDD = re.compile(r"(?m)^\s*(describe|it)\s*\(")
_FAILED = tuple(range(33))
"""Exit codes that are let pass where a share is asked for: mocha's is the number of failures."""


def node_goals(ground: Ground) -> list[Goal]:
    """At most ``PROPOSED`` goals, without two of the same command."""
    found: dict[str, Goal] = {}
    for values in _goals(ground):
        with suppress(ValueError):  # names that make the command too long
            goal = Goal(**values)
            found.setdefault(goal.command, goal)
    return list(found.values())[:PROPOSED]


def _goals(ground: Ground) -> Iterator[dict[str, Any]]:
    project = NodeProject(ground.files)
    files = {n: d.decode("utf-8", "replace") for n, d in test_files(ground.files, ground.package.tests).items()}
    for framework in _RUN:
        ours = {name: text for name, text in files.items() if framework_of(text) == framework}
        if ours:
            yield _suite(ground, framework, ours, f"the tests that are written for {framework}")
    if main := _main(project):
        yield {
            "command": f"""node -e "import('./{main}').then((m) => console.log('loaded', Object.keys(m).length))\"""",
            "expect": "The project can be loaded: the number of names that it exports is printed.",
            "pattern": r"^loaded [1-9]",
        }  # fmt: skip
    if "test" in (project.package.get("scripts") or {}):
        yield {
            "command": "npm test", "pattern": "|".join(_PASSED.values()), "exit_codes": _FAILED,
            "passing_share": ground.passing_share,
            "expect": f"The project's own script runs its tests, and at least {ground.passing_share:.0%} of them pass.",
        }  # fmt: skip
    for name in sorted(files, key=lambda n: (-len(files[n]), n)):
        yield _suite(ground, framework_of(files[name]), {name: files[name]}, f"the tests of {name}")


def _suite(ground: Ground, framework: str, files: Mapping[str, str], words: str) -> dict[str, Any]:
    tdd = " --ui tdd" if framework == "mocha" and not any(_BDD.search(text) for text in files.values()) else ""
    names = " ".join(map(shlex.quote, sorted(files)))
    return {
        "command": f"{_RUN[framework]}{tdd} {names}", "pattern": _PASSED[framework], "exit_codes": _FAILED,
        "passing_share": ground.passing_share,
        "expect": f"{framework} runs {words} and reports at least {ground.passing_share:.0%} of them as passed.",
    }  # fmt: skip


def _main(project: NodeProject) -> str:
    """The file that is loaded by the project's name; empty where none is there."""
    stated = [project.package.get("main"), project.package.get("module"), "index.js", "index.mjs"]
    for text in stated:
        if not isinstance(text, str):
            continue
        name = str(PurePosixPath(text))
        for file in (name, f"{name}.js", f"{name}/index.js"):
            if file in project.files and re.fullmatch(r"[\w./-]+", file):
                return file
    return ""
