"""Use an install in ``tasks build --install``: a pinned package with the locked dependencies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from woodshed.record.atomic import write_whole
from woodshed.tasks.install.python.extensions import SUFFIX
from woodshed.tasks.packages.catalogue import Module, Package, Wheel
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import KEPT_SOURCES
from woodshed.tasks.sources.layout import ini_lines
from woodshed.tasks.sources.project import Project
from woodshed.tasks.sources.repository import pack

from .lock import Install

_PLUGIN_OPTIONS = ("asyncio_mode", "asyncio_default_fixture_loop_scope", "anyio_mode")


def installed_package(
    package: Package, files: Mapping[str, bytes], found: Install, out: Path
) -> tuple[Package, dict[str, bytes]]:
    """Return (``package``, ``files``) with what the install adds. ``out`` keeps the archive, since no index has it.

    Raises PackageError if the install was made from other bytes, or if a Node project needs services.
    """
    name = package.name
    if found.source != package.sha256:
        commit = f"give {found.origin}@{found.commit}" if found.commit else "give what was installed"
        raise PackageError(
            f"{name}: the install was made from other bytes (sha256 {found.source[:12]}..., these are "
            f"{package.sha256[:12]}...): {commit}, or install this into another folder"
        )
    if found.recipe.start and package.language == "node":
        raise PackageError(f"{name}: its install has a start script, and services are started for Python projects only")
    whole = {**files, **found.added}
    data = pack(whole, name)
    file = f"{name}-{package.version}-{found.digest[:12]}.tar.gz"
    write_whole(out / KEPT_SOURCES / file, data)
    options = plugin_lines(files) if found.plugins else ()
    needs = (f"{name}-install",) if only_wheels(found.installed) else ()
    made = replace(
        package,
        file=file,
        sha256=hashlib.sha256(data).hexdigest(),
        needs=needs,
        integrity="",
        ini=(*package.ini, *options),
        plugins=found.plugins,
        install=found.digest,
        start=found.recipe.start,
        built=tuple(sorted(name for name in found.added if name.endswith(SUFFIX))),
        metadata="" if package.language == "node" else f"{found.name}=={found.version}",
    )
    return made, whole


def only_wheels(found: Iterable[object]) -> tuple[Wheel, ...]:
    """The wheels among the locked packages of an install."""
    return tuple(one for one in found if isinstance(one, Wheel))


def only_modules(found: Iterable[object]) -> tuple[Module, ...]:
    """The npm modules among the locked packages of an install."""
    return tuple(one for one in found if isinstance(one, Module))


def plugin_lines(files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The project's options for pytest plugins, as lines of a pytest configuration."""
    return tuple(ini_lines(Project(files), _PLUGIN_OPTIONS))
