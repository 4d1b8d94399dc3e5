"""The box in which a repository is installed: all of its files, pip, the test runner, and a depot in place of an index.

The repository's code is importable where it lies and is never installed: a copy would hold the answers. What it says
of itself when it is asked for its metadata is a ``dist-info`` with a name and a version and no code.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from woodshed.grading.install.box import SCRATCH
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox
from woodshed.sandbox.template import HOME
from woodshed.tasks.packages.catalogue import Package, Wheel
from woodshed.tasks.packages.dependencies import (
    MOUNT,
    group_layer,
    metadata_layer,
    python_path,
    remembered,
)
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import WORKDIR

INDEX_PORT = 4873
"""Where a box finds its depot, on its own 127.0.0.1."""

START, GOALS = f"{SCRATCH}/start.sh", f"{SCRATCH}/goals.json"

_TOOLS = "/opt/install"
_LIMITS = Limits(cpu_seconds=1800.0, disk=2 << 30, file_size=1 << 30, memory=4 << 30)


@dataclass(frozen=True)
class Ground:
    """The initial state: a ``package`` at a fixed commit with its layout, all its ``files``, the pinned test runner.

    ``names``: what the project calls itself, so that no copy of it is installed. ``version``: of its metadata.
    """

    package: Package
    files: Mapping[str, bytes] = field(repr=False)
    names: tuple[str, ...]
    version: str
    base: tuple[Wheel, ...]
    cache: Path | None = None


@dataclass(frozen=True)
class Boxes:
    """Where boxes come from."""

    backend: Backend
    layers: LayerStore
    _made: dict[tuple[str, str], str] = field(default_factory=dict)

    async def build(self, ground: Ground, depot_port: int, extra: Mapping[str, bytes] = {}) -> Sandbox:
        """The initial state with a network of one server, the depot, plus ``extra`` files in the workspace."""
        names = build_layers(ground, self.layers)
        env = build_environment(ground, f"http://127.0.0.1:{INDEX_PORT}/simple")
        egress = Egress(routes={INDEX_PORT: f"127.0.0.1:{depot_port}"}, max_bytes=2 << 30, max_connections=4000)
        return await self.backend.create(self._spec(ground, names, env, extra, egress))

    async def locked(self, ground: Ground, wheels: Sequence[Wheel], added: Mapping[str, bytes]) -> Sandbox:
        """What tasks will run in: the initial state, locked wheels in layers, added files; no pip and no network."""
        names = _base_layers(ground, self.layers)
        if wheels:
            names.append(group_layer("install", tuple(wheels), self.layers, cache=ground.cache))
        return await self.backend.create(self._spec(ground, names, _environment(ground), added, None))

    def _spec(
        self, ground: Ground, names: Sequence[str], env: Mapping[str, str], extra: Mapping[str, bytes],
        egress: Egress | None,
    ) -> BoxSpec:  # fmt: skip
        names = [*names, self._once("workspace", ground, _workspace_layer)]
        return BoxSpec(
            layers=tuple(map(self.layers.path, names)),
            files={f"{WORKDIR}/{name}": data for name, data in extra.items()},
            workdir=WORKDIR, env=env, limits=_LIMITS, egress=egress,
        )  # fmt: skip

    def _once(self, what: str, ground: Ground, make: Callable[[Ground, LayerStore], str]) -> str:
        key = (what, ground.package.sha256)
        if key not in self._made:
            self._made[key] = make(ground, self.layers)
        return self._made[key]


def build_layers(ground: Ground, layers: LayerStore) -> list[str]:
    """What a builder finds below the repository: the test runner, the project's metadata, pip."""
    return [*_base_layers(ground, layers), _pip_layer(layers), _constraints_layer(ground, layers)]


def build_environment(ground: Ground, index: str) -> dict[str, str]:
    """The environment of a builder whose pip asks ``index``."""
    return {
        **_environment(ground), "PIP_INDEX_URL": index,
        "PATH": f"{_TOOLS}/bin:{HOME}/.local/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE": "", "PIP_CONSTRAINT": f"{_TOOLS}/constraints.txt", "PIP_USER": "1",
        "PIP_ONLY_BINARY": ":all:",
        "PIP_NO_INPUT": "1", "PIP_NO_CACHE_DIR": "1", "PIP_NO_COMPILE": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "1", "PIP_NO_WARN_SCRIPT_LOCATION": "1",
    }  # fmt: skip


def _environment(ground: Ground) -> dict[str, str]:
    return {"PYTHONPATH": ":".join(python_path(ground.package, WORKDIR)), "PYTHONDONTWRITEBYTECODE": "1"}


def _base_layers(ground: Ground, layers: LayerStore) -> list[str]:
    made = [group_layer("pytest", ground.base, layers, cache=ground.cache)]
    return [*made, metadata_layer(ground.names[-1], ground.version, layers)]


def _workspace_layer(ground: Ground, layers: LayerStore) -> str:
    def fill(root: Path) -> None:
        for name, data in ground.files.items():
            target = root / WORKDIR.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    return layers.add("install-workspace", fill)


def _constraints_layer(ground: Ground, layers: LayerStore) -> str:
    """The versions of the test runner, which pip may not change."""

    def fill(root: Path) -> None:
        (root / _TOOLS[1:]).mkdir(parents=True)
        (root / _TOOLS[1:] / "constraints.txt").write_text("".join(f"{w.name}=={w.version}\n" for w in ground.base))

    return layers.add("install-constraints", fill)


def _pip_layer(layers: LayerStore) -> str:
    """pip as it is installed here, its bytecode with it: compiling it in every box costs seconds."""
    spec = importlib.util.find_spec("pip")
    if spec is None or spec.origin is None:
        raise PackageError("pip is not installed in this environment, and it installs in boxes; install it")
    origin = Path(spec.origin).parent

    def fill(root: Path) -> None:
        place, commands = root / MOUNT[1:] / "pip", root / _TOOLS[1:] / "bin"
        shutil.copytree(origin, place)  # times too, by which bytecode is valid
        commands.mkdir(parents=True)
        for name in ("pip", "pip3"):
            (commands / name).write_text('#!/bin/sh\nexec python3 -m pip "$@"\n')
            (commands / name).chmod(0o755)

    return remembered(layers, f"pip-{metadata.version('pip')}", "install-pip", fill)
