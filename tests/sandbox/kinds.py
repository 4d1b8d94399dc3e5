"""The kinds of boxes that the contract of ``protocol.Sandbox`` is tried on; each is skipped where it does not work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from woodshed.sandbox.backends.docker.backend import DockerBackend, probe_docker
from woodshed.sandbox.backends.docker.engine import ENGINES, Engine, find_engine
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError

FIXTURES = {"namespace": "with_backend", "gvisor": "with_gvisor", "microvm": "with_microvm", "hosts": "with_hosts"}
"""Name of each kind but the engines -> fixture that runs a coroutine function on a backend of it."""
NAMES = (*FIXTURES, *ENGINES)
LIVE = ("gvisor", "microvm")
"""Kinds whose snapshots hold memory and processes."""
CPU_SECONDS = {"microvm": 120}
"""An emulated second is long."""

Body = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Kind:
    """``run``: runs a coroutine function on a backend; ``spec``: two layers, a preloaded module and small limits.

    Every box of the contract has this specification but for files and environment, so that microvm boots one guest.
    """

    name: str
    run: Callable[[Body], Any]
    spec: BoxSpec = field(repr=False)


def marked(names: Iterable[str]) -> list[Any]:
    """Parameters of a test; those of microvm, whose machines are emulated here, take long."""
    return [pytest.param(name, marks=pytest.mark.long) if name == "microvm" else name for name in names]


def layered_spec(folder: Path, cpu_seconds: float) -> BoxSpec:
    """The specification of every box of the contract; its layers lie in ``folder``."""
    store = LayerStore(folder)

    def lower(layer: Path) -> None:
        (layer / "opt/site-packages").mkdir(parents=True)
        (layer / "opt/site-packages/layered.py").write_text("NAME = 'layer'\n")
        (layer / "workspace").mkdir()
        (layer / "workspace/below.txt").write_text("from a layer")

    def upper(layer: Path) -> None:
        (layer / "opt/site-packages").mkdir(parents=True)
        (layer / "opt/site-packages/layered.py").write_text("NAME = 'upper layer'\n")

    layers = tuple(store.path(store.add("test", fill)) for fill in (lower, upper))
    limits = Limits(memory=200 << 20, processes=24, cpu_seconds=cpu_seconds, file_size=4 << 20, disk=24 << 20)
    return BoxSpec(layers=layers, preload=("json",), limits=limits)


def working_engine(name: str) -> Engine:
    """The container engine called ``name``; skips where it does not work."""
    try:
        probe = probe_docker(name, None)
    except SandboxError as error:
        pytest.skip(str(error))
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert "control group" in probe.limits_in_force["memory"] and "disk" not in probe.limits_in_force
    return find_engine(name)


def engine_runner(engine: Engine, root: Path) -> Callable[[Body], Any]:
    """Runs a coroutine function on a backend of its own; nothing of that is left in the engine or in ``root``."""

    def run(body: Body) -> Any:
        async def main() -> Any:
            before = await left_in(engine)
            backend = DockerBackend(engine.name, root)
            try:
                return await body(backend)
            finally:
                await backend.close()
                assert not root.exists() or not list(root.iterdir())
                assert await left_in(engine) <= before

        return asyncio.run(main())

    return run


async def left_in(engine: Engine) -> set[str]:
    """Ids of the engine's containers and images that belong to any owner."""
    listings = (("ps", "-a"), ("images",))
    rows = [
        await engine.run(*listing, "--filter", "label=woodshed.owner", "--format", "{{.ID}}") for listing in listings
    ]
    return set(" ".join(rows).split())
