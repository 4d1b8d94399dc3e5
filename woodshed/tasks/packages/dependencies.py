"""What tests need besides the package: pinned wheels unpacked into read-only layers below the workspace."""

from __future__ import annotations

import compileall
import hashlib
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TYPE_CHECKING

from .catalogue import Catalogue, Package, Wheel
from .index import Index
from .source import fetch, unpack_wheel

if TYPE_CHECKING:
    from woodshed.sandbox.layers import LayerStore

MOUNT = "/opt/deps"


def dependency_layers(
    catalogue: Catalogue, package: Package, layers: LayerStore, *, cache: Path | None = None, index: Index | None = None
) -> tuple[str, ...]:
    """Names of the layers that hold the package's test dependencies under ``/opt/deps``, lowest first.

    Wheels are unpacked, never installed: no code of theirs runs on the host. Bytecode is compiled ahead, since a box
    cannot write to its layers. Raises PackageError as ``fetch`` does.
    """
    return tuple(_layer(group, wheels, layers, cache, index) for group, wheels in catalogue.wheels_of(package))


def python_path(package: Package, workdir: str = "/workspace") -> tuple[str, ...]:
    """Entries of PYTHONPATH in the box: dependencies first, so that nothing in the workspace shadows them."""
    return (MOUNT, *(workdir if entry == "." else f"{workdir}/{entry}" for entry in package.path))


def _layer(
    group: str, wheels: tuple[Wheel, ...], layers: LayerStore, cache: Path | None, index: Index | None
) -> str:
    paths = [fetch(w.name, w.version, w.file, w.sha256, cache=cache, index=index) for w in wheels]
    digest = hashlib.sha256("".join(w.sha256 for w in wheels).encode()).hexdigest()[:12]

    def fill(root: Path) -> None:
        target = root / MOUNT.lstrip("/")
        for path in paths:
            unpack_wheel(path, target)
        # Checked by hash, not by time: the layer stays valid when it is copied.
        compileall.compile_dir(
            str(target), ddir=MOUNT, quiet=2, workers=1, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
        )

    return layers.add(f"deps-{group}-{digest}", fill)



