"""Test dependencies of a package: pinned wheels, unpacked into read-only layers below the workspace."""

from __future__ import annotations

import compileall
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from py_compile import PycInvalidationMode

from woodshed.record.atomic import write_whole
from woodshed.sandbox.guest.template import SITE_PACKAGES
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError

from .catalogue import Catalogue, Package, Wheel
from .index import Index, PackageError
from .source import fetch, unpack_wheel

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,80}[A-Za-z0-9])?")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!_-]{0,60}")

MOUNT = SITE_PACKAGES
"""Folder of the wheels in a box. It is on the path of every interpreter there, after the standard library."""


def dependency_layers(
    catalogue: Catalogue, package: Package, layers: LayerStore, *, cache: Path | None = None, index: Index | None = None
) -> tuple[str, ...]:
    """Names of the layers that hold the package's test dependencies on the interpreter's path, lowest first.

    Wheels are unpacked, not installed: none of their code runs on the host. Their bytecode is compiled here, because a
    box cannot write to its layers. Raises PackageError as ``fetch`` does.
    """
    groups = catalogue.wheels_of(package)
    made = [group_layer(group, wheels, layers, cache=cache, index=index) for group, wheels in groups]
    if package.metadata:
        name, _, version = package.metadata.partition("==")
        made.append(metadata_layer(name, version, layers))
    return tuple(made)


def python_path(package: Package, workdir: str = "/workspace") -> tuple[str, ...]:
    """Entries of PYTHONPATH in the box: dependencies first, so that nothing in the workspace shadows them."""
    return (MOUNT, *(workdir if entry == "." else f"{workdir}/{entry}" for entry in package.path))


def metadata_layer(name: str, version: str, layers: LayerStore) -> str:
    """The name of a layer with the installed metadata of a project only: no code, no list of files.

    Raises PackageError as ``metadata_file`` does.
    """
    place, data = metadata_file(name, version)

    def fill(root: Path) -> None:
        target = root / MOUNT.lstrip("/") / place
        target.parent.mkdir(parents=True)
        target.write_bytes(data)

    return layers.add("metadata", fill)


def metadata_file(name: str, version: str) -> tuple[str, bytes]:
    """Return (place below ``MOUNT``, contents) of the installed metadata of a project.

    Both come from the project, so they are checked: raises PackageError unless they are a name and a version (PEP 508,
    PEP 440).
    """
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise PackageError(f"{name[:80]!r} {version[:80]!r}: not the name and the version of a project")
    folder = re.sub(r"[-_.]+", "_", name).lower()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return f"{folder}-{version}.dist-info/METADATA", text.encode()


def group_layer(
    group: str, wheels: tuple[Wheel, ...], layers: LayerStore, *, cache: Path | None = None, index: Index | None = None
) -> str:
    """Name of the layer with the unpacked ``wheels``; see ``dependency_layers``."""
    pinned = hashlib.sha256("".join(w.sha256 for w in wheels).encode()).hexdigest()[:16]

    def fill(root: Path) -> None:
        target = root / MOUNT.lstrip("/")
        for wheel in wheels:
            unpack_wheel(fetch(wheel.name, wheel.version, wheel.file, wheel.sha256, cache=cache, index=index), target)
        # Without time stamps, so that the bytecode stays valid when the layer is copied.
        mode = PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(str(target), ddir=MOUNT, quiet=2, workers=1, invalidation_mode=mode)

    return remembered(layers, f"wheels-{pinned}", f"wheels-{group}", fill)


def remembered(layers: LayerStore, key: str, prefix: str, fill: Callable[[Path], None]) -> str:
    """Name of the layer that ``fill`` makes; it is made once for a ``key`` and interpreter.

    Layers are named by their contents, which take seconds to make, so the name is stored under ``key``.
    """
    note = layers.root / f".{key}-{sys.implementation.cache_tag}"
    try:
        name = note.read_text("utf-8")
        layers.path(name)
        return name
    except (OSError, SandboxError):
        pass
    name = layers.add(prefix, fill)
    write_whole(note, name)
    return name
