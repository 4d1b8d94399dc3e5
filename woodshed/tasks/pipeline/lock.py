"""``DIR/sources.toml``: the packages that the tasks of a folder are made from, pinned by sha256, as in a catalogue.

A source is added before its first task is written, and its entry never changes, so a second build uses the same bytes,
test dependencies and settings.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.toml import to_toml
from woodshed.tasks.packages.catalogue import (
    Catalogue,
    Module,
    Package,
    Wheel,
    dump_catalogue,
    load_catalogue,
)
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.settings import PackageTaskSettings
from woodshed.tasks.sources.claim import SOURCES
from woodshed.tasks.sources.spec import SourceSpec

_HEAD = "# Locks what the tasks in this folder are made from. Written by `woodshed tasks build`; do not edit.\n"
_FREE = {"folder", "packages", "catalogue", "tasks_per_package", "attempts", "parallel", "suite_seconds"}


class SourceLock:
    """The lock of the folder ``out``, which need not exist. PackageError if it is damaged or has other settings."""

    def __init__(self, out: Path, settings: PackageTaskSettings) -> None:
        self.out, self.path = out, out / SOURCES
        self.base = load_catalogue(Path(settings.catalogue) if settings.catalogue else None)
        if "pytest" not in self.base.wheels:
            raise PackageError(f"{settings.catalogue}: [wheels] has no group pytest, which runs the tests; add it")
        self.catalogue = Catalogue({}, {"pytest": self.base.wheels["pytest"]})
        self.settings = {k: v for k, v in settings.model_dump(mode="json").items() if k not in _FREE}
        if self.path.exists():
            self._load()

    def _load(self) -> None:
        try:
            self.catalogue = load_catalogue(self.path)
            found = tomllib.loads(self.path.read_text("utf-8")).get("settings", {})
            if "pytest" not in self.catalogue.wheels:
                raise PackageError(f"{self.path}: [wheels] has no group pytest")
        except (PackageError, OSError, ValueError) as error:
            advice = "it locks what this folder was built from: restore it, or build into another folder"
            raise PackageError(f"{error}; {advice}") from None
        for key, value in self.settings.items():
            if key in found and found[key] != value:
                raise PackageError(
                    f"{self.out} was built with {key} = {_shown(found[key])}, and this command says "
                    f"{_shown(value)}: give the same, or build into another folder"
                )

    def find(self, spec: SourceSpec) -> Package | None:
        """The package that this source is locked to."""
        return next((p for p in self.catalogue.packages.values() if p.origin == spec.origin), None)

    def add(self, package: Package, groups: dict[str, Sequence[Wheel]], modules: Sequence[Module] = ()) -> None:
        """Lock ``package`` with the ``groups`` of wheels that its ``needs`` name, or with its ``modules`` (Node)."""
        wheels = {**self.catalogue.wheels, **{k: tuple(v) for k, v in groups.items()}}
        packages = {**self.catalogue.packages, package.name: package}
        places = {**self.catalogue.modules, **({package.name: tuple(modules)} if modules else {})}
        self.catalogue = Catalogue(
            dict(sorted(packages.items())), dict(sorted(wheels.items())), dict(sorted(places.items()))
        )
        self.write()

    def add_wheels(self, group: str, wheels: Sequence[Wheel]) -> None:
        """Lock a group of wheels that no package in the lock needs."""
        catalogue = self.catalogue
        groups = dict(sorted({**catalogue.wheels, group: tuple(wheels)}.items()))
        self.catalogue = Catalogue(catalogue.packages, groups, catalogue.modules)
        self.write()

    def write(self) -> None:
        write_whole(self.path, _HEAD + to_toml({**dump_catalogue(self.catalogue), "settings": self.settings}))

    def from_catalogue(self, spec: SourceSpec) -> Package | None:
        """Lock the package of the catalogue if it has the version asked for; else None."""
        known = self.base.packages.get(spec.name)
        if spec.kind != "pypi" or known is None or known.version != spec.version:
            return None
        package = dataclasses.replace(known, origin=spec.origin)
        self.add(package, {group: self.base.wheels[group] for group in known.needs})
        return package


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
