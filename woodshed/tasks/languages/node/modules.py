"""Pin Node projects, and unpack the npm packages that their tests need into a read-only layer at ``/node_modules``.

Node searches ``/node_modules`` last, after every folder of the workspace, so the layer needs no setting and no link.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from woodshed.record.atomic import write_whole
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, SandboxError
from woodshed.tasks.packages.catalogue import Catalogue, Module, Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.prepare import SUITE_SECONDS, unused_tests
from woodshed.tasks.packages.source import read_sdist

from .npm import fetch, resolve
from .prepare import prepare
from .project import RUNNERS, NodeProject, find_layout, needed

MOUNT = "/node_modules"
_COMMAND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def module_layers(
    catalogue: Catalogue, package: Package, layers: LayerStore, *, cache: Path | None = None
) -> tuple[str, ...]:
    """Names of the layers with the modules of ``package``: one, or none. Raises PackageError as ``fetch`` does."""
    modules = catalogue.modules.get(package.name, ())
    return (unpack(modules, MOUNT, layers, cache=cache),) if modules else ()


def unpack(
    modules: Sequence[Module], mount: str, layers: LayerStore, *, commands: bool = False, cache: Path | None = None
) -> str:
    """Name of a layer with ``modules`` at the absolute path ``mount``; with ``commands`` also their ``.bin``, as npm
    links it. Raises PackageError as ``fetch`` does."""
    asked = "".join(f"{m.place} {m.integrity}\n" for m in modules) + (f"{mount} .bin" if commands else "")
    pinned = hashlib.sha256(asked.encode()).hexdigest()[:16]
    note = (
        layers.root / f".modules-{pinned}"
    )  # stores the name: layers are named by their contents, which take seconds to make
    try:
        name = note.read_text("utf-8")
        layers.path(name)
        return name
    except (OSError, SandboxError):
        pass
    paths = fetch(modules, cache)

    def fill(root: Path) -> None:
        for module in modules:
            place = PurePosixPath(module.place)
            if place.is_absolute() or ".." in place.parts or not place.parts:
                raise PackageError(f"{module.package}: a module with the place {module.place!r}")
            for file, data in read_sdist(paths[module.integrity]).items():
                if file.endswith(".node"):
                    continue  # compiled for another machine; tests that need it fail
                target = root / mount[1:] / module.place / file
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
                except (FileExistsError, NotADirectoryError, IsADirectoryError):
                    what = f"{module.package} {module.version}"
                    raise PackageError(f"{what}: {file} is a file and a folder at once in what is unpacked") from None
        if commands:
            _link_commands(root / mount[1:], [m.place for m in modules if "/node_modules/" not in m.place])

    name = layers.add("npm-modules", fill)
    write_whole(note, name)
    return name


def _link_commands(folder: Path, places: Sequence[str]) -> None:
    """Make ``.bin`` with links to the commands that the packages at ``places`` state."""
    for place in places:
        try:
            said = json.loads((folder / place / "package.json").read_text("utf-8-sig"))
            stated = said.get("bin") or {}
            found = stated if isinstance(stated, dict) else {str(said["name"]).rpartition("/")[2]: stated}
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        for command, file in found.items():
            path = PurePosixPath(str(file))
            target = folder / place / path
            if not _COMMAND.fullmatch(command) or path.is_absolute() or ".." in path.parts:
                continue
            if target.is_file():
                target.chmod(0o755)
                (folder / ".bin").mkdir(exist_ok=True)
                link = folder / ".bin" / command
                link.unlink(missing_ok=True)
                link.symlink_to(PurePosixPath("..", place, path))


_WISH = re.compile(r"((?:@[\w.~-]+/)?[\w.~-]+)(?:@([^\s:/]+))?")


def described_node(package: Package, project: NodeProject, code: Sequence[str], tests: Sequence[str]) -> Package:
    """Return ``package`` with layout and licence; ``code``, ``tests``: from the command line. Raises PackageError."""
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
    """Return (package with its layout, its npm packages, notes).

    ``code``, ``tests``, ``needs``: from the command line; ``locked``: the npm packages, if they are known already.
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
    suite = await prepare(
        package=made, catalogue=catalogue, files=files, backend=backend, layers=paths, cache=cache, seconds=seconds
    )
    if not suite.functions:
        raise PackageError(
            f"{name}: its tests pass but run none of its functions; give the path of its code with --code"
        )
    notes = [f"{package} was left out: it needs {project.name} itself" for package in guilty]
    if unstated:
        notes.append(
            f"{', '.join(unstated)} is loaded but not stated in package.json; name it with --needs, and use another "
            "--out"
        )
    notes += unused_tests(suite)
    if not project.licence:
        notes.append("package.json states no licence: find it out before you pass these tasks on")
    return made, modules, tuple(notes)


def wished_modules(needs: Sequence[str]) -> dict[str, str]:
    """Package -> range, from ``--needs``. Raises PackageError if one is not written properly."""
    found = {}
    for text in needs:
        match = _WISH.fullmatch(text)
        if match is None:
            raise PackageError(f"--needs {text}: write an npm package as NAME or NAME@RANGE, such as chai@^4")
        found[match[1]] = match[2] or "*"
    return found
