"""The kit for Python: pip installs wheels, pytest runs the tests.

The repository's code is imported from its place and never installed: a copy would hold the answers. Its metadata comes
from a ``dist-info`` with name and version and without code.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from woodshed.grading.install.changes import changes, installed_in, python_refusal
from woodshed.grading.install.goal import Goal
from woodshed.sandbox.guest.template import HOME, command_path
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Sandbox
from woodshed.tasks.install.kit import TOOLS, Left, Pinned, Served
from woodshed.tasks.install.space import Boxes, Ground
from woodshed.tasks.install.use import only_wheels
from woodshed.tasks.packages.catalogue import Wheel
from woodshed.tasks.packages.dependencies import MOUNT, group_layer, metadata_layer, python_path, remembered
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import WORKDIR
from woodshed.tasks.sources.requirements import canonical, wished
from woodshed.tasks.sources.resolve import import_names

from .depot import Depot
from .extensions import with_extensions
from .goals import python_goals
from .plugins import entry_points
from .rules import PythonRuleBuilder


class PythonKit:
    """The ``Kit`` for Python."""

    box = """\
The repository lies in the working directory. Its code is importable where it lies: do not install the project itself,
and leave its files as they are. pip installs wheels from a package index; there is no other network. pytest is
there."""
    runner = "pytest"
    absent = "no wheel for it was found"

    def index(self, ground: Ground, only: Sequence[Served] | None) -> Depot:
        return Depot(without=ground.names, only=None if only is None else only_wheels(only), cache=ground.cache)

    def base_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        made = [group_layer("pytest", ground.base, layers, cache=ground.cache)]
        return [*made, metadata_layer(ground.names[-1], ground.version, layers)]

    def tool_layers(self, ground: Ground, layers: LayerStore) -> list[str]:
        return [_pip_layer(layers), _constraints_layer(ground, layers)]

    def package_layers(self, ground: Ground, installed: Sequence[Pinned], layers: LayerStore) -> list[str]:
        return [group_layer("install", only_wheels(installed), layers, cache=ground.cache)] if installed else []

    def environment(self, ground: Ground) -> dict[str, str]:
        return {"PYTHONPATH": ":".join(python_path(ground.package, WORKDIR)), "PYTHONDONTWRITEBYTECODE": "1"}

    def tool_environment(self, ground: Ground, index: str) -> dict[str, str]:
        return {
            **self.environment(ground),
            "PIP_INDEX_URL": f"{index}/simple",
            "PATH": f"{TOOLS}/bin:{HOME}/.local/bin:{command_path()}",
            "PYTHONDONTWRITEBYTECODE": "",
            "PIP_CONSTRAINT": f"{TOOLS}/constraints.txt",
            "PIP_USER": "1",
            "PIP_ONLY_BINARY": ":all:",
            "PIP_NO_INPUT": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_COMPILE": "1",
            "PIP_BREAK_SYSTEM_PACKAGES": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_RETRIES": "1",
            "PIP_NO_WARN_SCRIPT_LOCATION": "1",
        }

    async def compiled(self, ground: Ground, boxes: Boxes) -> tuple[Ground, str]:
        return await with_extensions(ground, boxes)

    async def left(self, box: Sandbox, ground: Ground, served: Iterable[Served]) -> Left:
        files, listed = await box.get(["**/*"], max_bytes=512 << 20), await installed_in(box)
        installed, unknown = _locked(listed, only_wheels(served), ground)
        taken = import_names((*ground.base, *installed), cache=ground.cache)
        added, wrong = changes(ground.files, files, python_refusal(ground.package.path, taken))
        return Left(installed, added, (*unknown, *wrong))

    def plugins(self, installed: Sequence[Pinned], cache: Path | None) -> tuple[str, ...]:
        return entry_points(only_wheels(installed), cache=cache)

    def goals(self, ground: Ground) -> list[Goal]:
        return python_goals(ground)

    def builder(self, needs: Sequence[str]) -> PythonRuleBuilder:
        return PythonRuleBuilder(wished(needs))


def _constraints_layer(ground: Ground, layers: LayerStore) -> str:
    """Name of the layer with pip's constraints: the pinned versions of the test runner."""

    def fill(root: Path) -> None:
        (root / TOOLS[1:]).mkdir(parents=True)
        (root / TOOLS[1:] / "constraints.txt").write_text("".join(f"{w.name}=={w.version}\n" for w in ground.base))

    return layers.add("install-constraints", fill)


def _pip_layer(layers: LayerStore) -> str:
    """Name of the layer with pip as it is installed here, and its bytecode: compiling it in a box takes seconds."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise PackageError("pip is not installed in this environment, but boxes need it; install it")
    origin = Path(spec.origin).parent

    def fill(root: Path) -> None:
        place, commands = root / MOUNT[1:] / "pip", root / TOOLS[1:] / "bin"
        shutil.copytree(origin, place)  # keeps the time stamps by which bytecode is valid
        commands.mkdir(parents=True)
        for name in ("pip", "pip3"):
            (commands / name).write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
            (commands / name).chmod(0o755)

    return remembered(layers, f"pip-{metadata.version('pip')}", "install-pip", fill)


def _locked(listed: Sequence[str], served: Iterable[Wheel], ground: Ground) -> tuple[tuple[Wheel, ...], list[str]]:
    known = {(canonical(w.name), w.version): w for w in served}
    own = set(map(canonical, ground.names))
    found, problems = [], []
    for text in listed:
        name, _, version = text.rpartition("-")
        wheel = known.get((canonical(name), version))
        if wheel is not None:
            found.append(wheel)
        elif canonical(name) not in own:  # the project's own copy is neither locked nor a problem
            problems.append(
                f"{name} {version} is installed but was not fetched as a wheel from the index, so it cannot be locked: "
                "write mocks as files of the workspace"
            )
    return tuple(sorted(found, key=lambda w: canonical(w.name))), problems
