"""The folder of an install, ``DIR/NAME/``: ``install.toml`` (its lock), ``setup.sh``, ``start.sh``, ``files/``.

Everything that was fetched and every file of the recipe is pinned by its hash, so that the same install can be made
again offline from the cache, and a changed one is refused.
"""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from woodshed.grading.install.goal import Goal, goal_of
from woodshed.record.atomic import write_whole
from woodshed.record.toml import to_toml
from woodshed.tasks.packages.catalogue import Module, Wheel
from woodshed.tasks.packages.index import PackageError

from .kit import Archive, Pinned, Served
from .replay import Recipe

NAME = "install.toml"
_HEAD = "# Written by `woodshed tasks install`; do not edit.\n"
_TEXTS = ("origin", "commit", "source", "name", "version", "builder", "setup_sha256")


@dataclass(frozen=True)
class Install:
    """A locked install. ``origin``, ``commit`` (of a repository) and ``source`` (sha256 of its archive): what was
    installed. ``name``, ``version``: from the project's metadata.

    ``builder``: ``rules`` or the model. ``tries``: number of recipes tried. ``served`` and ``installed``: as in
    ``Replay``. ``plugins``: entry points of pytest plugins that tests may load. ``added``: files that the recipe made.
    """

    origin: str
    commit: str
    source: str
    name: str
    version: str
    builder: str
    tries: int
    recipe: Recipe
    goals: tuple[Goal, ...]
    targets: tuple[Goal, ...]
    served: tuple[Served, ...] = ()
    installed: tuple[Pinned, ...] = ()
    plugins: tuple[str, ...] = ()
    added: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of everything that the results of tests depend on."""
        pins = sorted(p.sha256 if isinstance(p, Wheel) else f"{p.place} {p.integrity}" for p in self.installed)
        parts = (self.source, self.version, pins, self.plugins, _hashes(self.added), *filter(None, [self.recipe.start]))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def save(self, folder: Path) -> None:
        """Write ``folder`` atomically: it is there completely or not at all."""
        staging = folder.with_name(f".new-{folder.name}")
        for left in (staging, folder):
            shutil.rmtree(left, ignore_errors=True)
        write_whole(staging / "setup.sh", self.recipe.setup)
        if self.recipe.start:
            write_whole(staging / "start.sh", self.recipe.start)
        for name, data in self.added.items():
            write_whole(staging / "files" / name, data)
        table = {
            **{key: getattr(self, key) for key in _TEXTS if key != "setup_sha256"},
            "tries": self.tries,
            "setup_sha256": _sha256(self.recipe.setup.encode()),
            "start_sha256": _sha256(self.recipe.start.encode()) if self.recipe.start else "",
            "plugins": list(self.plugins),
            "notes": list(self.notes),
            "goal": [{**g.table(), "target": g in self.targets} for g in self.goals],
            "installed": [p.file for p in self.installed if isinstance(p, Wheel)],
            "wheel": [vars(w) for w in self.served if isinstance(w, Wheel)],
            "module": [vars(m) for m in self.installed if isinstance(m, Module)],
            "archive": [
                {"package": a.package, "version": a.version, "integrity": a.integrity}
                for a in self.served
                if isinstance(a, Archive)
            ],
            "files": _hashes(self.added),
        }
        write_whole(staging / NAME, _HEAD + to_toml(table))
        staging.rename(folder)


def load_install(folder: Path) -> Install:
    """Read an install. Raises PackageError, which names file and field, if it is damaged or was changed by hand."""
    path = folder / NAME
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        return _install(folder, table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PackageError(f"{path}: {error}; {_ADVICE}") from None
    except (ValueError, TypeError, KeyError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise PackageError(f"{path}: {what}; {_ADVICE}") from None


_ADVICE = "delete its folder and give the `woodshed tasks install` command again"


def _install(folder: Path, table: dict[str, Any]) -> Install:
    for key in _TEXTS:
        if not isinstance(table[key], str):
            raise ValueError(f"{key} must be a string")
    setup = _checked(folder / "setup.sh", table["setup_sha256"])
    start = _checked(folder / "start.sh", table["start_sha256"]) if table["start_sha256"] else b""
    added = {name: _checked(folder / "files" / _inside(name), sha256) for name, sha256 in table["files"].items()}
    marked = [(goal_of({k: v for k, v in g.items() if k != "target"}, "goal"), g["target"]) for g in table["goal"]]
    wheels = [Wheel(**entry) for entry in table["wheel"]]
    if bad := [w.file for w in wheels if len(w.sha256) != 64 or "/" in w.file]:
        raise ValueError(f"wheel {bad[0]}: needs a file name and a sha256 of 64 hexadecimal digits")
    by_file = {w.file: w for w in wheels}
    modules = [Module(**{**entry, "place": _inside(entry["place"])}) for entry in table.get("module", ())]
    archives = [Archive(**entry) for entry in table.get("archive", ())]
    integrities = [*((m.package, m.integrity) for m in modules), *((a.package, a.integrity) for a in archives)]
    if bad := [name for name, integrity in integrities if not integrity.startswith("sha512-")]:
        raise ValueError(f"{bad[0]}: needs an integrity of the form sha512-BASE64")
    installed: list[Pinned] = [*(by_file[file] for file in table["installed"]), *modules]
    return Install(
        origin=table["origin"],
        commit=table["commit"],
        source=table["source"],
        name=table["name"],
        version=table["version"],
        builder=table["builder"],
        tries=int(table["tries"]),
        recipe=Recipe(setup.decode(), start.decode()),
        goals=tuple(g for g, _ in marked),
        targets=tuple(g for g, t in marked if t),
        served=(*wheels, *archives),
        installed=tuple(installed),
        plugins=tuple(table["plugins"]),
        added=added,
        notes=tuple(table["notes"]),
    )


def find_install(folder: Path, origin: str) -> Install:
    """The install of a source, or of the commit it names, in a folder of installs. PackageError if there is none."""
    for path in sorted(folder.glob(f"*/{NAME}")):
        found = load_install(path.parent)
        if origin in (found.origin, f"{found.origin}@{found.commit}"):
            return found
    raise PackageError(
        f"{folder} has no install of {origin}; make one with `woodshed tasks install {origin} --out {folder}`"
    )


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"files: {name!r} is outside")
    return name


def _checked(path: Path, sha256: str) -> bytes:
    data = path.read_bytes()
    if _sha256(data) != sha256:
        raise ValueError(f"{path.name} was changed after it was locked")
    return data


def _hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: _sha256(data) for name, data in sorted(files.items())}


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
