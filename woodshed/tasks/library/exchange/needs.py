"""Resolve and lock the dependencies of instances, once for all instances that state the same."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from woodshed.sandbox.layers import LayerStore
from woodshed.tasks.generators.packages.report import Rejected
from woodshed.tasks.install.lock import Install
from woodshed.tasks.install.use import installed_package, only_wheels
from woodshed.tasks.packages.catalogue import Package, Wheel
from woodshed.tasks.packages.dependencies import dependency_layers
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import fetch
from woodshed.tasks.pipeline.lock import SourceLock
from woodshed.tasks.sources.requirements import Requirement
from woodshed.tasks.sources.resolve import Contradiction, check_import_names, resolve


@dataclass
class Needs:
    """Resolves requirements to wheels, pins them in ``lock`` and makes layers of them. ``left_out``: requirement -> why
    it could not be resolved."""

    lock: SourceLock
    layers: LayerStore
    cache: Path | None = None
    left_out: dict[str, str] = field(default_factory=dict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def met(
        self, package: Package, requirements: Sequence[Requirement], own: Sequence[str]
    ) -> tuple[Package, tuple[str, ...]]:
        """Return (the package with its wheels, layers below its workspace). ``own``: names that are never installed.

        Raises Rejected if the requirements cannot be used, PackageError if pip or the index cannot be.
        """
        base = self.lock.catalogue.wheels["pytest"]
        texts = sorted({r.text for r in requirements})
        asked = repr((texts, sorted(own), [w.sha256 for w in base]))
        group = f"{package.name}-{hashlib.sha256(asked.encode()).hexdigest()[:12]}"
        async with self._turn:
            if group not in self.lock.catalogue.wheels:
                try:
                    resolved = await asyncio.to_thread(resolve, requirements, base, without=own)
                except Contradiction as error:
                    raise Rejected(str(error)) from None
                self.left_out |= resolved.left_out
                self.lock.add_wheels(group, resolved.wheels)
        return await self._laid(package, group)

    async def installed(
        self, package: Package, files: Mapping[str, bytes], found: Install, out: Path
    ) -> tuple[Package, tuple[str, ...]]:
        """As ``met``, with the packages of an install. Raises Rejected if it was made from other bytes."""
        try:
            made, _ = await asyncio.to_thread(installed_package, package, files, found, out)
        except PackageError as error:
            raise Rejected(f"its install cannot be used: {error}") from None
        group = f"{package.name}-install-{found.digest[:12]}"
        async with self._turn:
            if group not in self.lock.catalogue.wheels:
                self.lock.add_wheels(group, only_wheels(found.installed))
        return await self._laid(made, group)

    async def _laid(self, package: Package, group: str) -> tuple[Package, tuple[str, ...]]:
        wheels = self.lock.catalogue.wheels[group]
        made = self.lock.catalogue.furnished(replace(package, needs=(group,) if wheels else ()))
        return made, await asyncio.to_thread(self._layers, made, wheels)

    def _layers(self, package: Package, wheels: Sequence[Wheel]) -> tuple[str, ...]:
        for wheel in wheels:
            path = fetch(wheel.name, wheel.version, wheel.file, wheel.sha256, cache=self.cache)
            try:
                check_import_names(wheel, path, package.sources)
            except PackageError as error:
                raise Rejected(f"its tests need a copy of it: {error}") from None
        return dependency_layers(self.lock.catalogue, package, self.layers, cache=self.cache)
