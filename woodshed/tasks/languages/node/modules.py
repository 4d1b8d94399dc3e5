"""What tests need besides the project: pinned npm packages unpacked into one read-only layer, at ``/node_modules``.

Node looks there last, after every folder of the workspace, so the layer needs no setting and no link.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from woodshed.record.atomic import write_whole
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError
from woodshed.tasks.generators.packages.catalogue import Catalogue, Module, Package
from woodshed.tasks.generators.packages.index import PackageError
from woodshed.tasks.generators.packages.source import read_sdist

from .npm import fetch

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
    """Name of a layer that has ``modules`` at ``mount``, an absolute path; with ``commands`` also their ``.bin``, as
    npm links it. Raises PackageError as ``fetch`` does."""
    asked = "".join(f"{m.place} {m.integrity}\n" for m in modules) + (f"{mount} .bin" if commands else "")
    pinned = hashlib.sha256(asked.encode()).hexdigest()[:16]
    note = layers.root / f".modules-{pinned}"  # a layer is named by its contents, which take seconds to make
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
                    continue  # compiled for another machine; what needs it fails its tests
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
    """``.bin`` with what the packages at ``places`` say that their commands are."""
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
