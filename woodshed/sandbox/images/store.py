"""The store of root filesystems: content-addressed folders, each with a note of what it was made from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.sandbox.guest.template import ETC, HOME
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import SandboxError

FOLDERS = ("proc", "dev", "sys", "etc", "opt", "run", "root", "tmp", "var/tmp", "usr/bin", "workspace", HOME[1:])
"""Folders that a box needs in its root, besides ``/usr/bin/sh``."""


@dataclass(frozen=True)
class Note:
    """Origin of a root. ``recipe``: the request. ``packages``: name, version and sha256 of each archive.
    ``env`` and ``workdir``: environment and working folder that commands should run with."""

    recipe: dict[str, Any]
    packages: list[list[str]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/workspace"


class RootStore:
    """Roots below ``folder`` (default: ``roots`` in the cache folder), each named ``KIND-DIGEST``."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = Path(folder) if folder is not None else cache_directory() / "roots"
        self._layers = LayerStore(self.folder, whole=True)

    def find(self, recipe: dict[str, Any]) -> str | None:
        """Return the name of the root that was made from the same recipe before, if it still exists."""
        try:
            name = (self._by_recipe / _key(recipe)).read_text()
            self.path(name)
        except (OSError, SandboxError):
            return None
        return name

    def add(self, kind: str, recipe: dict[str, Any], fill: Callable[[Path], Note]) -> str:
        """Store the root that ``fill`` writes into the empty folder it is given; return its name."""
        notes: list[Note] = []

        def build(folder: Path) -> None:
            note = fill(folder)
            notes.append(note)
            # Written into the contents, so that roots that differ only in these values get different names.
            runs = {"env": note.env, "workdir": note.workdir}
            (folder / "etc/woodshed-root.json").write_text(json.dumps(runs, sort_keys=True) + "\n")
            if not (folder / "usr/bin/sh").exists():
                raise SandboxError(f"root {kind}: it has no /usr/bin/sh; nothing could run in it")

        name = self._layers.add(kind, build)
        write_whole(self.folder / f"{name}.json", json.dumps(asdict(notes[0]), indent=1) + "\n")
        write_whole(self._by_recipe / _key(recipe), name)
        return name

    def path(self, name: str) -> Path:
        """Return the folder of a root, for ``BoxSpec.root``. Raises SandboxError if it is not in the store."""
        try:
            return self._layers.path(name)
        except SandboxError:
            raise SandboxError(f"root {name!r} is not in {self.folder}; see `woodshed roots --help`") from None

    def note(self, name: str) -> Note:
        """Read the note of a root."""
        self.path(name)
        return Note(**json.loads((self.folder / f"{name}.json").read_text()))

    def names(self) -> list[str]:
        return self._layers.names()

    @property
    def _by_recipe(self) -> Path:
        return self.folder / "asked"


def furnish(folder: Path) -> None:
    """Add the folders and small files that every root needs, unless the packages brought them."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in ETC.items():
        path = folder / "etc" / name
        if not path.exists() and not path.is_symlink():
            path.write_text(text)
    for name in ("tmp", "var/tmp"):
        with contextlib.suppress(OSError):
            (folder / name).chmod(0o1777)


def _key(recipe: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:32]
