"""The builder of Node projects that needs no model: what tests and code load is installed as ``package.json`` says.

What tests then miss is looked up among everything that it states. A package that nobody states is never guessed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from woodshed.grading.install.box import SCRATCH
from woodshed.grading.install.goal import Goal
from woodshed.tasks.install.replay import Recipe, Replay
from woodshed.tasks.install.space import Ground
from woodshed.tasks.languages.node.project import NodeProject, needed

_MISSING = re.compile(r"Cannot find (?:module|package) '((?:@[\w.~-]+/)?[\w~-][\w.~-]*)")
_NO_COMMAND = re.compile(r"^sh: (?:\d+: )?([\w.-]+): (?:command )?not found$", re.MULTILINE)
_LEFT_OUT = re.compile(r"^left out: (.+)$", re.MULTILINE)
_INSTALL = f"""\
# In a folder of its own: beside package.json npm would install everything that it states.
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
    """Writes recipes by rule; ``wished`` (package -> range) is installed whatever the project states."""

    name = "rules"

    def __init__(self, wished: Mapping[str, str]) -> None:
        self.wished = dict(wished)
        self._chosen: dict[str, str] = {}
        self._left_out: dict[str, str] = {}

    async def recipe(self, ground: Ground, targets: Sequence[Goal], last: Replay | None) -> Recipe | None:
        """The next recipe to try, None where nothing can be added to ``last``."""
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
        """Add what ``text`` says is missing; False where there is nothing to add."""
        refused = set(_LEFT_OUT.findall(text))
        for item in [item for item in self._chosen.items() if _text(item) in refused]:
            self._left_out[item[0]] = self._chosen.pop(item[0])
        stated = project.stated()
        new = {
            name: stated[name] for name in (*_MISSING.findall(text), *_NO_COMMAND.findall(text))
            if name in stated and name not in self._chosen and name not in self._left_out and name != project.name
        }  # fmt: skip
        self._chosen |= new
        return bool(new)


def _text(item: tuple[str, str]) -> str:
    return f"{item[0]}@{item[1]}"
