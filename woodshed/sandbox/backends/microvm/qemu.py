"""The programs and the kernel that the microvm backend needs, and the probe that tries them out."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from woodshed.record.cache import cache_directory
from woodshed.sandbox.host.probing import try_live_fork
from woodshed.sandbox.protocol import Probe

if TYPE_CHECKING:
    from .backend import MicrovmBackend


_HOW = "run `scripts/install-qemu` (Debian on amd64, no root needed), or set WOODSHED_QEMU to a folder that it made"
_OLDEST = (8, 2)
_NAME = "qemu-system-x86_64"


class Missing(Exception):
    """A program is missing or too old; the message says what to do."""


@dataclass(frozen=True)
class Programs:
    """Paths of the programs. ``root``: folder that they were fetched to. ``libraries``: folders of their libraries."""

    root: Path
    qemu: Path
    kernel: Path
    modules: Path
    busybox: Path
    mkfs: Path
    libraries: tuple[Path, ...]
    firmware: tuple[Path, ...]

    def below_root(self) -> dict[str, Any]:
        """Return what the box supervisor needs to know, as paths relative to ``root``."""

        def below(path: Path) -> str:
            return path.relative_to(self.root).as_posix()

        return {
            "programs": str(self.root),
            "qemu": below(self.qemu),
            "libraries": list(map(below, self.libraries)),
            "firmware": list(map(below, self.firmware)),
        }

    def environment(self) -> dict[str, str]:
        """Return environment variables with which the programs find their libraries."""
        return {"LD_LIBRARY_PATH": ":".join(map(str, self.libraries)), "PATH": "/usr/bin:/bin"}


def is_installed() -> bool:
    """Return whether ``scripts/install-qemu`` was run here or WOODSHED_QEMU is set, not whether QEMU works."""
    return bool(os.environ.get("WOODSHED_QEMU")) or _folder().is_dir()


def _folder() -> Path:
    return Path(os.environ.get("WOODSHED_QEMU") or cache_directory() / "qemu").resolve()


@lru_cache(maxsize=4)
def find_programs() -> Programs:
    """Find and try out what ``scripts/install-qemu`` fetched. Raises Missing."""
    root = _folder()
    if not root.is_dir():
        raise Missing(f"QEMU is not there; {_HOW}")
    kernels = sorted((root / "boot").glob("vmlinuz-*"))
    if not kernels:
        raise Missing(f"{root} holds no kernel; {_HOW}")
    libraries = (root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu")
    release = kernels[-1].name.removeprefix("vmlinuz-")
    found = Programs(
        root=root,
        qemu=root / "usr/bin" / _NAME,
        kernel=kernels[-1],
        modules=root / "lib/modules" / release,
        busybox=root / "bin/busybox",
        mkfs=root / "usr/bin/mkfs.erofs",
        libraries=libraries,
        firmware=(root / "usr/share/seabios", root / "usr/share/qemu"),
    )
    for path in (found.qemu, found.modules, found.busybox, found.mkfs):
        if not path.exists():
            raise Missing(f"{root} lacks {path.relative_to(root)}; {_HOW}")
    said = _version([str(found.qemu), "--version"], found)
    version = re.search(r"version (\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < _OLDEST:
        raise Missing(f"{found.qemu} says {said.strip()[:80]!r}, not QEMU {_OLDEST[0]}.{_OLDEST[1]} or newer; {_HOW}")
    _version([str(found.mkfs), "--help"], found)
    if not os.access(shutil.which("setpriv") or "", os.X_OK):
        raise Missing("setpriv is not on the path; install util-linux")
    return found


def _version(command: list[str], programs: Programs) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True, env=programs.environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise Missing(f"{command[0]} does not run: {detail.strip()[:300]}; {_HOW}") from None
    return done.stdout


SECONDS = 300.0
_LIMITS = {
    "memory": "size of the machine, address space, accounting",
    "processes": "RLIMIT_NPROC",
    "cpu_seconds": "accounting",
    "file_size": "RLIMIT_FSIZE",
    "disk": "size of a tmpfs",
    "wall_time": "deadline",
    "output": "cut off",
}


async def attempt(backend: MicrovmBackend) -> Probe:
    """Try every operation and limit on a backend that was just opened."""
    found = await try_live_fork(backend, memory=256 << 20, limits_in_force=_LIMITS)
    slow = "no hardware virtualisation: guests are emulated, ten to thirty times slower than the machine"
    return replace(
        found,
        reasons=(slow,) if found.ok and backend.accelerator == "tcg" else found.reasons,
        capabilities=found.capabilities | {backend.accelerator},
    )
