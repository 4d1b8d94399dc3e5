"""The boxes of an install: the repository with an installer and an index, and the locked state that tasks use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.grading.install.changes import SCRATCH
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox
from woodshed.tasks.packages.catalogue import Package, Wheel
from woodshed.tasks.packages.prepare import WORKDIR

from .kit import INDEX_PORT, SHARE, Kit, Pinned

START, GOALS = f"{SCRATCH}/start.sh", f"{SCRATCH}/goals.json"

_LIMITS = Limits(cpu_seconds=1800.0, disk=2 << 30, file_size=1 << 30, memory=4 << 30)


@dataclass(frozen=True)
class Ground:
    """The initial state of an install: a ``package`` at a fixed commit with its layout, all its ``files``, the ``kit``
    of its language. ``base``: wheels of the pinned test runner, if that is pytest.

    ``names``: names of the project, so that no copy of it is installed. ``version``: from its metadata.
    ``passing_share``: share of the tests run that must pass in goals found by rules. ``built``: the files among
    ``files`` that were compiled here.
    """

    package: Package
    files: Mapping[str, bytes] = field(repr=False)
    names: tuple[str, ...]
    version: str
    kit: Kit
    base: tuple[Wheel, ...] = ()
    cache: Path | None = None
    passing_share: float = SHARE
    built: tuple[str, ...] = ()


@dataclass(frozen=True)
class Boxes:
    """Creates the boxes of an install."""

    backend: Backend
    layers: LayerStore
    _made: dict[tuple[str, str, tuple[str, ...]], str] = field(default_factory=dict)

    async def build(self, ground: Ground, index_port: int, extra: Mapping[str, bytes] = {}) -> Sandbox:
        """A box with the initial state and ``extra`` files; the only server that it can reach is the index."""
        env = ground.kit.tool_environment(ground, f"http://127.0.0.1:{INDEX_PORT}")
        egress = Egress(routes={INDEX_PORT: f"127.0.0.1:{index_port}"}, max_bytes=2 << 30, max_connections=4000)
        return await self.backend.create(self._spec(ground, build_layers(ground, self.layers), env, extra, egress))

    async def locked(
        self, ground: Ground, installed: Sequence[Pinned], added: Mapping[str, bytes], *, services: bool = False
    ) -> Sandbox:
        """A box as tasks will have it: initial state, locked packages in layers, added files; no installer, and no
        network except a loopback for ``services``."""
        names, egress = self._locked_layers(ground, installed), Egress() if services else None
        return await self.backend.create(self._spec(ground, names, ground.kit.environment(ground), added, egress))

    async def without_repository(self, ground: Ground, installed: Sequence[Pinned]) -> Sandbox:
        """A box with locked packages, a loopback and an empty workspace; services must start in it."""
        layers = tuple(map(self.layers.path, self._locked_layers(ground, installed)))
        return await self.backend.create(BoxSpec(layers=layers, workdir=WORKDIR, limits=_LIMITS, egress=Egress()))

    def _locked_layers(self, ground: Ground, installed: Sequence[Pinned]) -> list[str]:
        kit = ground.kit
        return [*kit.base_layers(ground, self.layers), *kit.package_layers(ground, installed, self.layers)]

    def _spec(
        self,
        ground: Ground,
        names: Sequence[str],
        env: Mapping[str, str],
        extra: Mapping[str, bytes],
        egress: Egress | None,
    ) -> BoxSpec:
        names = [*names, self._once("workspace", ground, _workspace_layer)]
        return BoxSpec(
            layers=tuple(map(self.layers.path, names)),
            files={f"{WORKDIR}/{name}": data for name, data in extra.items()},
            workdir=WORKDIR,
            env=env,
            limits=_LIMITS,
            egress=egress,
        )

    def _once(self, what: str, ground: Ground, make: Callable[[Ground, LayerStore], str]) -> str:
        key = (what, ground.package.sha256, ground.built)
        if key not in self._made:
            self._made[key] = make(ground, self.layers)
        return self._made[key]


def build_layers(ground: Ground, layers: LayerStore) -> list[str]:
    """Names of the layers below the repository while it is being installed."""
    return [*ground.kit.base_layers(ground, layers), *ground.kit.tool_layers(ground, layers)]


def _workspace_layer(ground: Ground, layers: LayerStore) -> str:
    def fill(root: Path) -> None:
        for name, data in ground.files.items():
            target = root / WORKDIR.lstrip("/") / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    return layers.add("install-workspace", fill)
