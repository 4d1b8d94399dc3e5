"""What tests need besides the project: pinned npm packages unpacked into one read-only layer, at ``/node_modules``.

Node looks there last, after every folder of the workspace, so the layer needs no setting and no link.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from woodshed.record.atomic import write_whole
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError
from woodshed.tasks.packages.catalogue import Catalogue, Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.source import read_sdist

from .npm import fetch

MOUNT = "node_modules"


def module_layers(
    catalogue: Catalogue, package: Package, layers: LayerStore, *, cache: Path | None = None
) -> tuple[str, ...]:
    """Names of the layers with the modules of ``package``: one, or none. Raises PackageError as ``fetch`` does."""
    modules = catalogue.modules.get(package.name, ())
    if not modules:
        return ()
    pinned = hashlib.sha256("".join(f"{m.place} {m.integrity}\n" for m in modules).encode()).hexdigest()[:16]
    note = layers.root / f".modules-{pinned}"  # a layer is named by its contents, which take seconds to make
    try:
        name = note.read_text("utf-8")
        layers.path(name)
        return (name,)
    except (OSError, SandboxError):
        pass
    paths = fetch(modules, cache)

    def fill(root: Path) -> None:
        for module in modules:
            if ".." in PurePosixPath(module.place).parts:
                raise PackageError(f"{package.name}: a module with the place {module.place!r}")
            for file, data in read_sdist(paths[module.integrity]).items():
                if file.endswith(".node"):
                    continue  # compiled for another machine; what needs it fails its tests
                target = root / MOUNT / module.place / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)

    name = layers.add(f"npm-{package.name}"[:64], fill)
    write_whole(note, name)
    return (name,)
