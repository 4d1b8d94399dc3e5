"""Resolve and fetch npm packages with the npm client, as verified archives. No script of a package is run.

npm runs in an empty folder, so no configuration of a project applies; registry, proxy and credentials are those that it
is configured with.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.tasks.packages.catalogue import Module
from woodshed.tasks.packages.index import PackageError

_UNREACHABLE = re.compile(r"ENOTFOUND|EAI_AGAIN|ECONN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|network|CERT|socket")
_FLAGS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
_AT_ONCE = 24


def integrity_of(data: bytes) -> str:
    """Subresource integrity of an archive, as lock files of npm state it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def pack(name: str, version: str) -> bytes:
    """The published archive of a version. Raises PackageError if there is no such version, no npm or no registry."""
    with tempfile.TemporaryDirectory(prefix="woodshed-npm-") as scratch:
        said = _npm("pack", f"{name}@{version}", "--json", where=f"npm:{name}@{version}", folder=Path(scratch))
        entry = _packed(said)[0]
        data = (Path(scratch) / entry["filename"]).read_bytes()
    if entry.get("integrity", integrity_of(data)) != integrity_of(data):
        raise PackageError(f"npm:{name}@{version}: the archive is not the one that the registry states")
    return data


def resolve(wanted: Mapping[str, str], name: str, needed: Collection[str] = ()) -> tuple[tuple[Module, ...], list[str]]:
    """Return (pinned modules for ``wanted`` (name -> range) and dependencies, sorted by place; packages left out).

    ``name``: the project under test. Packages that depend on it are left out, because its published copy would hold the
    answers. Raises PackageError if one of ``needed`` depends on it, if a package has no archive on the registry, or if
    npm fails.
    """
    packages = _locked(wanted, name) if wanted else {}
    guilty = _needing(packages, wanted, name)
    if not guilty:
        return _modules(packages, name), []
    for package in sorted(guilty & set(needed)):
        raise PackageError(f"{name}: {package} needs {name} itself: every task would hold its answer")
    rest = {n: r for n, r in wanted.items() if n not in guilty}
    modules, more = resolve(rest, name, needed)
    return modules, sorted([*guilty, *more])


def _locked(wanted: Mapping[str, str], name: str) -> dict[str, Any]:
    """Place -> entry, of the packages in npm's lock file."""
    with tempfile.TemporaryDirectory(prefix="woodshed-npm-") as scratch:
        folder = Path(scratch)
        (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": dict(wanted)}))
        _npm("install", "--package-lock-only", where=f"{name}: its dependencies", folder=folder)
        lock = json.loads((folder / "package-lock.json").read_text("utf-8"))
    return {place: entry for place, entry in lock["packages"].items() if place}


def _package(place: str, entry: Mapping[str, Any]) -> str:
    return str(entry.get("name") or place.rpartition("node_modules/")[2])


def _needing(packages: Mapping[str, Any], wanted: Mapping[str, str], name: str) -> set[str]:
    """The packages of ``wanted`` that depend on ``name``, directly or not."""
    needs: dict[str, set[str]] = {}
    for place, entry in packages.items():
        needs.setdefault(_package(place, entry), set()).update(entry.get("dependencies", {}))
    guilty: set[str] = set()
    for package in wanted:
        seen, todo = {package}, [package]
        while todo:
            more = needs.get(todo.pop(), set()) - seen
            seen |= more
            todo += more
        guilty |= {package} if name in seen else set()
    return guilty


def _modules(packages: Mapping[str, Any], name: str) -> tuple[Module, ...]:
    found = []
    for place, entry in packages.items():
        if entry.get("optional") or entry.get("inBundle"):
            continue  # optional ones are compiled for one system; bundled ones are in the archive of another package
        package = _package(place, entry)
        if package == name:  # a peer dependency, for example
            raise PackageError(f"{name}: its tests need {name} itself: every task would hold its answer")
        if not entry.get("integrity", "").startswith("sha512-"):
            raise PackageError(f"{name}: {package} has no archive with a sha512 on the registry (git, or too old)")
        found.append(Module(place.removeprefix("node_modules/"), package, entry["version"], entry["integrity"]))
    return tuple(sorted(found, key=lambda m: m.place))


def archive_path(integrity: str, cache: Path | None = None) -> Path:
    """Path of an archive in the cache; it need not exist."""
    return (cache or cache_directory()) / "npm" / f"{hashlib.sha256(integrity.encode()).hexdigest()[:24]}.tgz"


def fetch(modules: Sequence[Module], cache: Path | None = None) -> dict[str, Path]:
    """Integrity -> verified archive in the cache; missing ones are downloaded. Raises PackageError."""
    paths = {m.integrity: archive_path(m.integrity, cache) for m in modules}
    missing = {m.integrity: m for m in modules if not _is_whole(paths[m.integrity], m.integrity)}
    batch = list(missing.values())
    for at in range(0, len(batch), _AT_ONCE):
        some = batch[at : at + _AT_ONCE]
        with tempfile.TemporaryDirectory(prefix="woodshed-npm-") as scratch:
            said = _npm(
                "pack",
                *(f"{m.package}@{m.version}" for m in some),
                "--json",
                where="dependencies",
                folder=Path(scratch),
            )
            for entry in _packed(said):
                data = (Path(scratch) / entry["filename"]).read_bytes()
                if (known := paths.get(integrity_of(data))) is not None:
                    write_whole(known, data)
    for module in batch:
        if not _is_whole(paths[module.integrity], module.integrity):
            raise PackageError(
                f"{module.package} {module.version}: the registry serves other bytes than are locked "
                f"({module.integrity[:20]}...), so the package is not used"
            )
    return paths


def _is_whole(path: Path, integrity: str) -> bool:
    return path.is_file() and integrity_of(path.read_bytes()) == integrity


def _packed(said: str) -> list[dict[str, Any]]:
    """Entries of ``npm pack --json``, which prints a list, or since npm 11.6 a table by package."""
    found = json.loads(said)
    return list(found.values()) if isinstance(found, dict) else found


def configuration() -> dict[str, Any]:
    """The configuration of npm without credentials (``npm config list``). Raises PackageError without npm."""
    with tempfile.TemporaryDirectory(prefix="woodshed-npm-") as scratch:
        return dict(json.loads(_npm("config", "list", "--json", where="npm's configuration", folder=Path(scratch))))


def _npm(*arguments: str, where: str, folder: Path) -> str:
    try:
        done = subprocess.run(
            ["npm", *arguments, *_FLAGS],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=900,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise PackageError(f"{where}: npm is not installed; install Node.js with npm") from None
    except subprocess.TimeoutExpired:
        raise PackageError(f"{where}: npm {arguments[0]} took longer than 15 minutes") from None
    if done.returncode == 0:
        return done.stdout
    lines = [line for line in done.stderr.splitlines() if line.startswith("npm error") and "log" not in line]
    text = " ".join(line.removeprefix("npm error").strip() for line in lines[:4]) or done.stderr.strip()[-300:]
    text = re.sub(r"(?<=//)[^/@\s]*@", "", text)
    if re.search(r"E404|ETARGET", done.stderr):
        raise PackageError(f"{where}: the npm registry has no such package or version ({text})")
    if _UNREACHABLE.search(done.stderr):
        raise PackageError(f"{where}: the npm registry cannot be reached ({text}); connect, or configure npm")
    raise PackageError(f"{where}: npm {arguments[0]} failed: {text}")
