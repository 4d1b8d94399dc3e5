"""Makes a root filesystem of Debian packages: the essential ones, the requested ones, and their dependencies.

It needs neither root nor a container engine and runs no maintainer script; the results of scripts that boxes need are
made here (shell, awk, certificate bundle). A root is named by the hash of its contents; its note lists the hash of
every archive.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path

from . import apt
from .store import Note, RootStore, furnish

_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_LINKS = {"sh": "dash", "awk": "mawk", "which": "which.debianutils", "nawk": "mawk"}
_NOT_READ = ("doc", "man", "info", "locale", "lintian", "bug", "doc-base")
"""Folders of /usr/share that programs do not need."""


def build_debian(
    store: RootStore,
    packages: Sequence[str],
    *,
    suite: str = "",
    essential: bool = True,
    refresh: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Make a root with ``packages`` of ``suite`` (default: this machine's release); return its name.

    A request that was made before returns the same root; ``refresh`` makes it again from the mirror's present state.
    ``essential``: include the packages that every Debian system has; otherwise ``packages`` must include a shell.
    Raises SandboxError if the machine runs no Debian, a package does not exist or the mirror does not answer.
    """
    suite = suite or apt.host_suite()
    apt.check_names([suite, *packages])
    wanted = sorted({*packages, *([apt.ESSENTIAL] if essential else [])})
    recipe = {"kind": "debian", "suite": suite, "packages": wanted}
    if not refresh and (name := store.find(recipe)):
        return name

    def fill(folder: Path) -> Note:
        for name in _MERGED:
            (folder / "usr" / name).mkdir(parents=True)
            (folder / name).symlink_to(f"usr/{name}")
        work = Path(tempfile.mkdtemp(prefix="woodshed-apt-"))
        try:
            found = apt.unpack(wanted, suite, folder, work, say)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        say("finishing the root")
        _finish(folder)
        return Note(recipe, [list(astuple(package)) for package in found])

    return store.add("debian", recipe, fill)


def _finish(folder: Path) -> None:
    programs = folder / "usr/bin"
    for name, target in _LINKS.items():
        if (programs / target).exists() and not os.path.lexists(programs / name):
            (programs / name).symlink_to(target)
    for name in _NOT_READ:
        shutil.rmtree(folder / "usr/share" / name, ignore_errors=True)
    for name in _MERGED:  # empty folders belong to other architectures
        if name not in ("bin", "sbin", "lib", "lib64") and not os.listdir(folder / "usr" / name):
            (folder / name).unlink()
            (folder / "usr" / name).rmdir()
    authorities = sorted((folder / "usr/share/ca-certificates").rglob("*.crt"))
    bundle = folder / "etc/ssl/certs/ca-certificates.crt"
    if authorities and not bundle.exists():
        bundle.parent.mkdir(parents=True, exist_ok=True)
        bundle.write_text("".join(path.read_text() for path in authorities))
    furnish(folder)
