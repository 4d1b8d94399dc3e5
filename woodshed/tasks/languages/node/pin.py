"""A Node source becomes a pinned package: its layout, the npm packages that its tests need, a suite that runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.packages.catalogue import Catalogue, Module, Package
from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.generators.packages.prepare import SUITE_SECONDS

from .modules import module_layers
from .npm import resolve
from .prepare import prepare
from .project import RUNNERS, NodeProject, find_layout, needed

_WISH = re.compile(r"((?:@[\w.~-]+/)?[\w.~-]+)(?:@([^\s:/]+))?")


def described_node(package: Package, project: NodeProject, code: Sequence[str], tests: Sequence[str]) -> Package:
    """``package`` with layout and licence; ``code`` and ``tests`` are a person's wishes. Raises PackageError."""
    if not project.package:
        raise PackageError(f"{package.name}: package.json is missing or cannot be read")
    try:
        layout = find_layout(project, sources=code, tests=tests)
    except PackageError as error:
        raise PackageError(f"{package.name}: {error}") from None
    licence = project.licence or package.licence
    return replace(package, language="node", licence=licence, sources=layout.sources, tests=layout.tests)


async def pin_node(
    package: Package,
    files: dict[str, bytes],
    code: Sequence[str],
    tests: Sequence[str],
    needs: Sequence[str],
    backend: Backend,
    layers: LayerStore,
    *,
    locked: tuple[Module, ...] | None = None,
    cache: Path | None = None,
    seconds: float = SUITE_SECONDS,
) -> tuple[Package, tuple[Module, ...], tuple[str, ...]]:
    """(the package with its layout, its npm packages, what a person should know).

    ``code``, ``tests`` and ``needs`` are a person's wishes; ``locked``: the npm packages, where they are found already.
    Raises PackageError, which says what to do.
    """
    project = NodeProject(files)
    made = described_node(package, project, code, tests)
    name = made.name
    wanted, unstated = needed(project, made, wished_modules(needs))
    loaded = {*(project.package.get("dependencies") or {}), *(n for r in RUNNERS.values() for n in r)}
    modules, guilty = (
        (locked, []) if locked is not None else await asyncio.to_thread(resolve, wanted, project.name, loaded)
    )
    catalogue = Catalogue({name: made}, {}, {name: modules})
    names = await asyncio.to_thread(module_layers, catalogue, made, layers, cache=cache)
    paths = tuple(layers.path(layer) for layer in names)
    suite = await prepare(made, catalogue, files, backend, paths, cache=cache, seconds=seconds)
    if not suite.functions:
        raise PackageError(f"{name}: its tests pass and run none of its functions; give its code's place: --code")
    notes = [f"{package} was left out: it needs {project.name} itself" for package in guilty]
    if unstated:
        notes.append(
            f"{', '.join(unstated)} is loaded and not stated in package.json; name it with --needs, and use another "
            "--out"
        )
    if suite.problems:
        notes.append(f"test files that cannot be used: {suite.problems[:300]}")
    if not project.licence:
        notes.append("package.json states no licence: find out before you pass these tasks on")
    return made, modules, tuple(notes)


def wished_modules(needs: Sequence[str]) -> dict[str, str]:
    """Package -> range of what a person names. Raises PackageError."""
    found = {}
    for text in needs:
        match = _WISH.fullmatch(text)
        if match is None:
            raise PackageError(f"--needs {text}: write an npm package as NAME or NAME@RANGE, such as chai@^4")
        found[match[1]] = match[2] or "*"
    return found
