"""Read-only disk images (erofs) of folders, made once and kept in the cache under a name made from their contents."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from woodshed.record.cache import cache_directory
from woodshed.sandbox import layers
from woodshed.sandbox.guest import template
from woodshed.sandbox.guest.masks import installed_packages
from woodshed.sandbox.host import payload
from woodshed.sandbox.protocol import SandboxError

from . import initrd
from .qemu import Programs

_OMITTED = (
    "share/doc",
    "share/man",
    "share/info",
    "share/locale",
    "share/icons",
    "share/help",
    "lib/debug",
    "lib/firmware",
    "lib/modules",
    "lib/jvm",
    "lib/google-cloud-sdk",
)
"""Folders below /usr that are left out: large and of no use to a box."""
_OWNED = (f"--force-uid={template.UID}", f"--force-gid={template.UID}")
_KEPT_SECONDS = 30 * 86400


class ImageStore:
    """The images of one user, in the folder ``images`` of the cache. Callable from several threads."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.root = cache_directory() / "images"
        self._layers: dict[str, Path] = {}
        self._base: dict[str, Path] = {}
        self._kernel: Path | None = None
        self._initrd: Path | None = None
        self._making = threading.RLock()

    def base(self) -> dict[str, Path]:
        """Return the images that every box has: ``base`` (skeleton and agent) and the parts of the host that it sees.

        Takes as long as copying /usr if that has changed since the last call on this machine.
        """
        with self._making:
            if not self._base:
                with tempfile.TemporaryDirectory(prefix="woodshed-base-") as work:
                    self._base = self._build_base(Path(work))
            return self._base

    def layer(self, folder: str) -> Path:
        """Return the image of a layer; its files belong to the box's user. Raises SandboxError naming the layer."""
        with self._making:
            if folder not in self._layers:
                if not os.path.isdir(folder):
                    raise SandboxError(f"layer {folder}: no such folder, or not readable")
                name = f"layer-{layers.digest(Path(folder))[:32]}"
                self._layers[folder] = self._make(name, folder, _OWNED)
            return self._layers[folder]

    def kernel(self) -> Path:
        """Return the kernel that guests boot."""
        if self._kernel is None:
            self._kernel = self._keep("kernel", self._programs.kernel.read_bytes(), initrd.unpack)
        return self._kernel

    def initrd(self) -> Path:
        """Return the guests' initial file system."""
        if self._initrd is None:
            self._initrd = self._keep("initrd", initrd.build(self._programs), bytes)
        return self._initrd

    def _build_base(self, work: Path) -> dict[str, Path]:
        skeleton = work / "base"
        parts = template.skeleton(str(skeleton))
        for name in ("tmp", "var/tmp"):
            (skeleton / name).chmod(0o1777)
        payload.copy_agent(str(skeleton))
        inside = skeleton / payload.PLACE[1:]
        (inside / "boot.py").write_text(payload.boot("virtual_machine") + "\n")
        found = {}
        for name, source, target in parts:
            masked = [os.path.relpath(folder, source) for folder in installed_packages(source)]
            for folder in masked:
                place = inside / "mask" / name / folder
                place.mkdir(parents=True)
                (place / template.PATH_FILE).write_text(template.SITE_PACKAGES + "\n")
            (inside / "mask" / name).mkdir(parents=True, exist_ok=True)
            with open(inside / "mounts", "a") as file:
                file.write(f"{name} {target}\n")
            excluded = [*masked, *(_OMITTED if name == "usr" else ()), *_cuda(source)]
            key = f"{name}-{_stamp(source, excluded)}"
            found[name] = self._make(key, source, ("--all-root",), partial(_left_out, source, excluded))
        found["base"] = self._make(f"base-{layers.digest(skeleton)[:32]}", str(skeleton), _OWNED)
        return found

    def _make(
        self, name: str, folder: str, options: Sequence[str], excluded: Callable[[], Sequence[str]] = lambda: ()
    ) -> Path:
        path = self.root / f"{name}.erofs"
        if self._there(path):
            return path
        if name.startswith("usr-"):
            print("sandbox: making a disk image of /usr for the microvm backend, once", file=sys.stderr)
        with self._new(path) as new:
            leave_out = [f"--exclude-path={each}" for each in excluded()]
            command = [str(self._programs.mkfs), "--quiet", "-x-1", *options, *leave_out, str(new), folder]
            done = subprocess.run(command, capture_output=True, text=True, env=self._programs.environment())
            if done.returncode:
                raise SandboxError(f"no image can be made of {folder}: {done.stderr.strip()[-500:]}")
        return path

    def _keep(self, name: str, source: bytes, made: Callable[[bytes], bytes]) -> Path:
        path = self.root / f"{name}-{hashlib.sha256(source).hexdigest()[:32]}"
        if not self._there(path):
            with self._new(path) as new:
                new.write_bytes(made(source))
        return path

    def _there(self, path: Path) -> bool:
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # the cache belongs to another user: being able to read it is enough
        return True

    @contextlib.contextmanager
    def _new(self, path: Path) -> Iterator[Path]:
        """Provide a temporary file beside ``path`` that is renamed to it at the end."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._clean()
        with tempfile.NamedTemporaryFile(dir=self.root, prefix=".new-", delete=False) as file:
            new = Path(file.name)
        try:
            yield new
            new.chmod(0o644)
            new.rename(path)
        finally:
            new.unlink(missing_ok=True)

    def _clean(self) -> None:
        """Remove images that were not used for a month; a machine that has one open keeps it."""
        for path in self.root.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                    path.unlink()


def _stamp(folder: str, excluded: Sequence[str]) -> str:
    """Hash names and times of a system's upper folders; the hash changes when something is installed or removed."""
    sha = hashlib.sha256(repr(excluded).encode())
    for first, names, _ in os.walk(folder):
        depth = os.path.relpath(first, folder).count("/") if first != folder else -1
        sha.update(f"{first} {os.stat(first).st_mtime_ns}\n".encode())
        names[:] = sorted(names) if depth < 1 else []
    return sha.hexdigest()[:32]


def _cuda(folder: str) -> list[str]:
    return [f"local/{name}" for name in _names(f"{folder}/local") if name.startswith("cuda")]


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _left_out(source: str, excluded: Sequence[str]) -> list[str]:
    """Return ``excluded`` and everything that this user cannot read and so cannot put into an image."""
    found = list(excluded)
    for folder, folders, files in os.walk(source):
        for name in (*folders, *files):
            path = f"{folder}/{name}"
            if not os.path.islink(path) and not os.access(path, os.R_OK | (os.X_OK if name in folders else 0)):
                found.append(os.path.relpath(path, source))
    return found
