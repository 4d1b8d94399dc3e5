"""Content-addressed folders on the host that boxes stack read-only: dependencies, unpacked packages, test runners."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from woodshed.record.walk import all_below
from woodshed.sandbox.guest.template import BOX_UID

from .protocol import SandboxError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9a-f]{24}")


class LayerStore:
    """Layers below ``root``, each named ``PREFIX-DIGEST`` by its contents and never changed once it is there.

    ``whole``: layers are whole root filesystems, not stacked on a base system.
    """

    def __init__(self, root: Path, *, whole: bool = False) -> None:
        self.root = Path(root).resolve()
        self._whole = whole

    def add(self, prefix: str, fill: Callable[[Path], None]) -> str:
        """Store the layer that ``fill`` writes into the empty folder it is given, once and atomically; return its name.

        The folder becomes the root folder of a box: a package goes below ``opt/site-packages``. Everything in it is
        made readable for all users, because boxes run as a user who owns nothing here. Raises what ``fill`` raises,
        and SandboxError for a bad prefix.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", prefix):
            raise SandboxError(f"layer prefix {prefix!r}: use letters, digits, dot, dash and underscore")
        self.root.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0 and (mode := self.root.stat().st_mode) & 0o055 != 0o055:
            self.root.chmod(mode | 0o055)  # root's boxes run as another user; a strict umask would keep them out
        work = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            fill(work)
            hidden = sorted({"usr", "proc", "dev", "bin", "lib", "lib64", "sbin"} & set(os.listdir(work)))
            if hidden and not self._whole:
                raise SandboxError(f"layer {prefix}: the base system hides {hidden}; packages go to opt/site-packages")
            _open_up(work)
            name = f"{prefix}-{digest(work)[:24]}"
            try:
                work.rename(self.root / name)
            except OSError:
                if not (self.root / name).is_dir():
                    raise
            return name
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def path(self, name: str) -> Path:
        """Return the folder of a layer. Raises SandboxError if it is not in the store."""
        path = self.root / name
        if not _NAME.fullmatch(name) or not path.is_dir():
            raise SandboxError(f"layer {name!r} is not in {self.root}; build its task again")
        return path

    def names(self) -> list[str]:
        """Return the names of all layers, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(p.name for p in self.root.iterdir() if _NAME.fullmatch(p.name))


def digest(folder: Path) -> str:
    """Return the sha256 (hex) of paths, kinds, execute bits and contents below ``folder``, not of times and owners."""
    sha = hashlib.sha256()
    for path in all_below(folder):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            kind, data = b"l", os.fsencode(os.readlink(path))
        elif stat.S_ISDIR(status.st_mode):
            kind, data = b"d", b""
        elif stat.S_ISREG(status.st_mode):
            kind, data = (b"x" if status.st_mode & 0o100 else b"f"), path.read_bytes()
        else:
            raise SandboxError(f"layer: {path} is neither a file, a folder nor a link")
        name = os.fsencode(path.relative_to(folder))
        sha.update(b"%c%d:%s%d:" % (kind, len(name), name, len(data)) + data)
    return sha.hexdigest()


def _open_up(folder: Path) -> None:
    """Make everything readable for all; as root also give it to the user of boxes, who can then write to folders."""
    for path in (folder, *all_below(folder)):
        if os.geteuid() == 0:
            os.lchown(path, BOX_UID, BOX_UID)
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & 0o100 else 0o644)
