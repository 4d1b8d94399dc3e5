"""Write tasks of Node projects, with the files that other Harbor tools need (see ``tasks/packages/harbor.py``)."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.grading.node.grader import REPORTER, framework_of, request_of, runner_source
from woodshed.grading.pytest_grader import STRAY
from woodshed.record.task import TaskInfo
from woodshed.tasks.languages.node.workspace import is_test, protected_globs, submission_globs
from woodshed.tasks.packages.catalogue import Module, Package
from woodshed.tasks.packages.harbor import dockerfile, required, required_json, script
from woodshed.tasks.packages.prepare import WORKDIR

from .save import Draft, Form

_FETCH = "RUN cd /opt/modules && npm ci --ignore-scripts --no-audit --no-fund && mv node_modules / && rm -rf /root/.npm"
_IMAGE = "FROM node:20-slim"


def node_image(package: Package, workdir: str) -> dict[str, bytes]:
    """Files of ``environment/`` besides the workspace; they install the modules of ``module_layers`` by npm."""
    modules = [m for m in package.below if isinstance(m, Module)]
    if not modules:
        return {"Dockerfile": dockerfile([_IMAGE], {}, workdir)}
    lines = [_IMAGE, "COPY modules /opt/modules", _FETCH]
    return {"Dockerfile": dockerfile(lines, {}, workdir), **lock_of(modules)}


def lock_of(modules: list[Module]) -> dict[str, bytes]:
    """``package.json`` and ``package-lock.json`` with which ``npm ci`` installs these modules at their places.

    Each module depends on those in its own folder, and the root on the rest, because npm removes what nothing needs.
    """
    entries: dict[str, dict[str, Any]] = {"": {"name": "modules", "dependencies": {}}}
    for module in sorted(modules, key=lambda m: m.place):
        above, _, name = module.place.rpartition("/node_modules/")
        entry: dict[str, Any] = {"version": module.version, "integrity": module.integrity}
        renamed = name != module.package
        if renamed:
            entry["name"] = module.package
        entries[f"node_modules/{module.place}"] = entry
        wanted = f"npm:{module.package}@{module.version}" if renamed else module.version
        holder = entries[f"node_modules/{above}" if above else ""]
        holder.setdefault("dependencies", {})[name] = wanted
    described = {"name": "modules", "private": True, "dependencies": entries[""]["dependencies"]}
    lock = {"name": "modules", "lockfileVersion": 3, "requires": True, "packages": entries}
    return {
        f"modules/{name}": (json.dumps(table, indent=1) + "\n").encode()
        for name, table in (("package.json", described), ("package-lock.json", lock))
    }


def node_check(info: TaskInfo, tests: Mapping[str, bytes], start: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files of ``tests/`` besides the ``tests`` themselves. ``start``: the workspace that the agent gets."""
    names = sorted({i.partition("::")[0] for i in required(info)})
    files = [
        request_of(name, tests[name].decode("utf-8", "replace"), info.workdir, max(1.0, info.timeout_sec / 3))
        for name in names
    ]
    return {
        "test.sh": script("node", "check.js"),
        "check.js": Path(__file__).with_name("harbor_check.js").read_bytes(),
        "runner.js": runner_source().encode(),
        "required.json": required_json(info, start, STRAY | {"package.json"}, files=files, reporter=REPORTER),
    }


_COMMANDS = {
    "mocha": "node /node_modules/mocha/bin/mocha.js --no-config",
    "tape": "node",
    "node:test": "node --test",
}


def command(workspace: Mapping[str, bytes], broken: Sequence[str], whole: Sequence[str]) -> str:
    """The test command of an agent: the files of the failing tests and of a few others, at most four in all."""
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


NODE_FORM = Form(
    grader="node",
    is_test=is_test,
    submission=submission_globs,
    protected=protected_globs,
    command=_command,
    check=_check,
    image=_image,
    environment=_environment,
)
