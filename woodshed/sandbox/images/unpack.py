"""Turns an archive that came out of a box into a folder of the host, trusting nothing in it."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from woodshed.sandbox.protocol import SandboxError

_MAX_FILES = 500_000


def unpack(archive: Path, folder: Path, *, max_bytes: int) -> None:
    """Write the members of a tar ``archive`` into the empty ``folder``.

    Links are made last, when nothing is written any more: so no name of a member can lead out through one. Devices,
    pipes and sockets are left out; a hard link is a copy. Raises SandboxError for names that lead out, and beyond
    ``max_bytes``, copies included.
    """
    links: list[tuple[Path, str]] = []
    left, files = max_bytes, 0
    try:
        with tarfile.open(archive) as members:
            for member in members:
                target = folder / _relative(member.name)
                source = folder / _relative(member.linkname) if member.islnk() else None
                files += 1
                left -= member.size if source is None else source.stat().st_size
                if left < 0 or files > _MAX_FILES:
                    raise SandboxError(f"the root filesystem has more than {max_bytes} bytes or {_MAX_FILES} files")
                if member.issym():
                    links.append((target, member.linkname))
                elif member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                elif member.isreg() or member.islnk():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if source is not None:
                        shutil.copy(source, target)
                        continue
                    data = members.extractfile(member)
                    assert data is not None
                    with target.open("wb") as file:
                        while piece := data.read(1 << 20):
                            file.write(piece)
                    target.chmod(0o755 if member.mode & 0o111 else 0o644)
        for target, to in links:
            target.parent.mkdir(parents=True, exist_ok=True)
            if os.path.lexists(target):
                raise SandboxError(f"the root filesystem names {target.relative_to(folder)} twice")
            target.symlink_to(to)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SandboxError(f"the root filesystem that came out of the box cannot be unpacked: {error}") from None


def _relative(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise SandboxError(f"the root filesystem names {name!r}, which leads out of it")
    return "/".join(parts)
