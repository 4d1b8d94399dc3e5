"""Goals and recipes of Node projects by rules, without a model.

A recipe installs what tests and code load, in the versions of ``package.json``; what tests then fail to load is looked
up there, and never guessed. Goals are the suite and its parts, the project's test script, and that it can be loaded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from woodshed.grading.install.changes import SCRATCH
from woodshed.grading.install.goal import Goal
from woodshed.grading.node.grader import framework_of
from woodshed.tasks.install.kit import PROPOSED
from woodshed.tasks.install.replay import Recipe, Replay
from woodshed.tasks.install.space import Ground
from woodshed.tasks.languages.node.project import NodeProject, needed, test_files

_MISSING = re.compile(r"Cannot find (?:module|package) '((?:@[\w.~-]+/)?[\w~-][\w.~-]*)")
_NO_COMMAND = re.compile(r"^sh: (?:\d+: )?([\w.-]+): (?:command )?not found$", re.MULTILINE)
_LEFT_OUT = re.compile(r"^left out: (.+)$", re.MULTILINE)
_INSTALL = f"""\
# In a separate folder: beside package.json, npm would install everything that it states.
install() {{
    mkdir -p {SCRATCH}/modules
    echo '{{}}' > {SCRATCH}/modules/package.json
    npm install --save --prefix {SCRATCH}/modules "$@"
}}
each() {{
    for one in "$@"; do install "$one" || echo "left out: $one"; done
}}
"""


class NodeRuleBuilder:
    """Writes recipes by rules; ``wished`` (package -> range) is always installed."""

    name = "rules"

    def __init__(self, wished: Mapping[str, str]) -> None:
        self.wished = dict(wished)
        self._chosen: dict[str, str] = {}
        self._left_out: dict[str, str] = {}

    async def recipe(self, ground: Ground, targets: Sequence[Goal], last: Replay | None) -> Recipe | None:
        """The next recipe to try; None if nothing can be added to ``last``."""
        project = NodeProject(ground.files)
        if last is None:
            self._chosen, _ = needed(project, ground.package, self.wished)
        elif not self._learn(project, last.output + "\n".join(r.output for r in last.reached)):
            return None
        lines = ["#!/bin/sh"]
        if self._chosen:
            wanted = " ".join(shlex.quote(_text(item)) for item in self._chosen.items())
            lines += [_INSTALL.rstrip(), f"install {wanted} || each {wanted}", f"mv {SCRATCH}/modules/node_modules ."]
        lines += [f"echo {shlex.quote(f'left out: {_text(item)}')}" for item in self._left_out.items()]
        return Recipe("\n".join(lines) + "\n")

    def _learn(self, project: NodeProject, text: str) -> bool:
        """Add what the output ``text`` says is missing; False if there is nothing to add."""
        refused = set(_LEFT_OUT.findall(text))
        for item in [item for item in self._chosen.items() if _text(item) in refused]:
            self._left_out[item[0]] = self._chosen.pop(item[0])
        stated = project.stated()
        new = {
            name: stated[name]
            for name in (*_MISSING.findall(text), *_NO_COMMAND.findall(text))
            if name in stated and name not in self._chosen and name not in self._left_out and name != project.name
        }
        self._chosen |= new
        return bool(new)


def _text(item: tuple[str, str]) -> str:
    return f"{item[0]}@{item[1]}"


_RUN = {
    "mocha": "node node_modules/mocha/bin/mocha.js --no-config",
    "tape": "node node_modules/tape/bin/tape",
    "node:test": "node --test",
}
_PASSED = {"mocha": r"^\s*[1-9]\d* passing\b", "tape": r"^# pass +[1-9]", "node:test": r"^\S pass [1-9]"}
_BDD = re.compile(r"(?m)^\s*(describe|it)\s*\(")
_FAILED = tuple(range(33))
"""Exit codes that are accepted with a passing share: the exit code of mocha is the number of failures."""


def node_goals(ground: Ground) -> list[Goal]:
    """At most ``PROPOSED`` goals with distinct commands."""
    found: dict[str, Goal] = {}
    for values in _goals(ground):
        with suppress(ValueError):  # the names make the command too long
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
        }
    if "test" in (project.package.get("scripts") or {}):
        yield {
            "command": "npm test",
            "pattern": "|".join(_PASSED.values()),
            "exit_codes": _FAILED,
            "passing_share": ground.passing_share,
            "expect": f"The project's own script runs its tests, and at least {ground.passing_share:.0%} of them pass.",
        }
    for name in sorted(files, key=lambda n: (-len(files[n]), n)):
        yield _suite(ground, framework_of(files[name]), {name: files[name]}, f"the tests of {name}")


def _suite(ground: Ground, framework: str, files: Mapping[str, str], words: str) -> dict[str, Any]:
    tdd = " --ui tdd" if framework == "mocha" and not any(_BDD.search(text) for text in files.values()) else ""
    names = " ".join(map(shlex.quote, sorted(files)))
    return {
        "command": f"{_RUN[framework]}{tdd} {names}",
        "pattern": _PASSED[framework],
        "exit_codes": _FAILED,
        "passing_share": ground.passing_share,
        "expect": f"{framework} runs {words} and reports at least {ground.passing_share:.0%} of them as passed.",
    }


def _main(project: NodeProject) -> str:
    """The file that is loaded by the project's name; empty if there is none."""
    stated = [project.package.get("main"), project.package.get("module"), "index.js", "index.mjs"]
    for text in stated:
        if not isinstance(text, str):
            continue
        name = str(PurePosixPath(text))
        for file in (name, f"{name}.js", f"{name}/index.js"):
            if file in project.files and re.fullmatch(r"[\w./-]+", file):
                return file
    return ""
