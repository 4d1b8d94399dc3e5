"""Transfer of layers: a tar of folders, files and links, checked against the layer's name when it is unpacked.

``LayersIn`` is the server's side (``GET`` and ``PUT /layers/NAME``); it writes a layer to disk while it arrives.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from starlette.types import Receive, Scope, Send

from woodshed.cluster.service import AdminKey, bearer
from woodshed.record.walk import all_below
from woodshed.sandbox.layers import LayerStore, digest
from woodshed.sandbox.protocol import SandboxError

from .calls import TooLarge, refuse, reply

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})-([0-9a-f]{24})")


def name_of(layer: Path) -> str:
    """Return a layer's name on a host: its name in the store, or one made from its contents. Raises SandboxError."""
    if not layer.is_dir():
        raise SandboxError(f"layer {layer}: no such folder")
    return layer.name if _NAME.fullmatch(layer.name) else f"folder-{digest(layer)[:24]}"


def pack(layer: Path, out: BinaryIO) -> None:
    """Write a layer as a tar, without owners and times."""
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
    """Unpack a layer into ``store``. Raises ValueError if it is malformed, over ``most`` bytes, or not ``name``."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"layer {name!r:.100}: not the name of a layer")
    try:
        stored = store.add(match[1], _filler(source, most))
    except (tarfile.TarError, EOFError, OSError, ValueError, SandboxError) as error:
        raise ValueError(f"layer {name}: {error}") from None
    if stored != name:  # it stays under the name of its contents, where it does no harm
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
        # Links are made last, and none lies below another, so nothing is ever written through one.
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
        raise ValueError(f"{name!r:.200} is not a path inside a layer")
    return path


_TAR = 2
"""Maximum size of a tar: this factor times ``max_layer``, plus 1 MiB, because small files take two blocks each."""


class LayersIn:
    def __init__(self, store: LayerStore, key: AdminKey, *, max_layer: int) -> None:
        self._store, self._key, self._most = store, key, max_layer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, name = dict(scope["headers"]), scope["path_params"]["name"]
        if not self._key.matches(bearer(headers.get(b"authorization"))):
            await refuse(send, 401, SandboxError("this route needs the host's admin key"))
            return
        try:
            self._store.path(name)
        except SandboxError as error:
            if scope["method"] == "GET":
                await refuse(send, 404, error)
                return
        else:
            await reply(send, 200, "application/json", b"{}")
            return
        try:
            self._store.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._store.root) as file:
                if not await self._spool(receive, file):
                    return
                await asyncio.to_thread(unpack, file, name, self._store, most=self._most)
        except TooLarge as error:
            await refuse(send, 413, SandboxError(str(error)))
        except ValueError as error:
            await refuse(send, 400, error)
        except OSError as error:  # such as a full disk
            await refuse(send, 409, SandboxError(f"layer {name} cannot be stored in {self._store.root}: {error}"))
        else:
            await reply(send, 200, "application/json", b"{}")

    async def _spool(self, receive: Receive, file: IO[bytes]) -> bool:
        """Write the request's body to a file; return False if the client hung up before its end."""
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            size += len(message.get("body", b""))
            if size > _TAR * self._most + (1 << 20):
                raise TooLarge(f"the layer is larger than {self._most} bytes (max_layer of this host)")
            file.write(message.get("body", b""))
            if not message.get("more_body", False):
                file.seek(0)
                return True
