"""What tasks of Node projects look like on disk."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.grading.node.run import framework_of
from woodshed.record.task import TaskInfo
from woodshed.tasks.generators.packages.catalogue import Package
from woodshed.tasks.generators.packages.prepare import WORKDIR
from woodshed.tasks.generators.packages.save import Draft, Form

from .harbor import node_check, node_image
from .workspace import is_test, protected_globs, submission_globs

_COMMANDS = {
    "mocha": "node /node_modules/mocha/bin/mocha.js --no-config",
    "tape": "node",
    "node:test": "node --test",
}


def command(workspace: Mapping[str, bytes], broken: Sequence[str], whole: Sequence[str]) -> str:
    """What runs the files of the failing tests and of a few others, at most four, by their frameworks."""
    files = dict.fromkeys(t.partition("::")[0] for t in (*broken, *whole[:3]))
    commands = []
    for name in list(files)[:4]:
        source = workspace[name].decode("utf-8", "replace")
        framework = framework_of(source)
        tdd = " --ui tdd" if framework == "mocha" and not re.search(r"(?m)^\s*(describe|it)\s*\(", source) else ""
        commands.append(f"{_COMMANDS[framework]}{tdd} {shlex.quote(name)}")
    return " && ".join(commands)


def _command(draft: Draft) -> str:
    return command(draft.workspace, draft.broken, draft.whole)


def _check(info: TaskInfo, draft: Draft) -> dict[str, bytes]:
    return node_check(info, draft.workspace, draft.start)


def _image(package: Package) -> dict[str, bytes]:
    return node_image(package, WORKDIR)


def _environment(package: Package) -> dict[str, Any]:
    return {}


NODE_FORM = Form("node", is_test, submission_globs, protected_globs, _command, _check, _image, _environment)
