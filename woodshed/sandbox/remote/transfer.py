"""Layers as one file: a tar of folders, files and links, checked against the layer's name when it is unpacked."""

from __future__ import annotations

import os
import re
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from woodshed.record.walk import all_below
from woodshed.sandbox.layers import LayerStore, digest
from woodshed.sandbox.protocol import SandboxError

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})-([0-9a-f]{24})")


def name_of(layer: Path) -> str:
    """Under which name a host keeps a layer: that of the store, or one made of its contents. Raises SandboxError."""
    if not layer.is_dir():
        raise SandboxError(f"layer {layer}: no such folder")
    return layer.name if _NAME.fullmatch(layer.name) else f"folder-{digest(layer)[:24]}"


def pack(layer: Path, out: BinaryIO) -> None:
    """Write a layer. Owners and times are left out."""
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for path in all_below(layer):
            status, member = path.lstat(), tarfile.TarInfo(str(path.relative_to(layer)))
            member.mode = 0o755 if status.st_mode & 0o100 else 0o644
            if stat.S_ISREG(status.st_mode):
                member.size = status.st_size
                with path.open("rb") as file:
                    tar.addfile(member, file)
                continue
            if stat.S_ISLNK(status.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                member.type = tarfile.DIRTYPE
            else:
                raise SandboxError(f"layer {layer.name}: {path} is neither a file, a folder nor a link")
            tar.addfile(member)


def unpack(source: BinaryIO, name: str, store: LayerStore, *, most: int) -> None:
    """Into ``store``. Raises ValueError where it is no layer, is larger than ``most`` bytes, or is not that layer."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"layer {name!r:.100}: this is no layer's name")
    try:
        stored = store.add(match[1], _filler(source, most))
    except (tarfile.TarError, EOFError, OSError, ValueError, SandboxError) as error:
        raise ValueError(f"layer {name}: {error}") from None
    if stored != name:  # what came is kept under its own name, where it does no harm
        raise ValueError(f"layer {name}: its contents are those of {stored}")


def _filler(source: BinaryIO, most: int) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        left, links = most, []
        with tarfile.open(fileobj=source, mode="r|") as tar:
            for member in tar:
                target = folder / _inside(member.name)
                if member.issym():
                    links.append((target, member.linkname))
                elif member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isreg():
                    left -= member.size
                    if left < 0:
                        raise ValueError(f"it holds more than {most} bytes (max_layer of that host)")
                    _write(tar, member, target)
                else:
                    raise ValueError(f"{member.name!r} is neither a file, a folder nor a link")
        # Links come last, and none lies below another: nothing is ever written through one.
        places = {target for target, _ in links}
        for target, to in links:
            if not places.isdisjoint(target.parents):
                raise ValueError(f"{target.name!r} lies below a link")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(to)

    return fill


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    data = tar.extractfile(member)
    assert data is not None
    with target.open("xb") as file:
        while piece := data.read(1 << 20):
            file.write(piece)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def _inside(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"{name!r:.200} is no path inside a layer")
    return path
