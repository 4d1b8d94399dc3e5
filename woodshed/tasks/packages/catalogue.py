"""The catalogue of vetted packages (``catalogue.toml``), typed and checked."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .index import PackageError

DEFAULT_CATALOGUE = Path(__file__).with_name("catalogue.toml")


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel that tests need: pure Python, or compiled for this platform if an install found it."""

    name: str
    version: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Module:
    """A pinned npm package that tests need. ``place``: path in ``node_modules``; ``integrity``: ``sha512-BASE64``."""

    place: str
    package: str
    version: str
    integrity: str


@dataclass(frozen=True)
class Package:
    """A pinned source distribution.

    ``sources``: files or folders of the code under test, relative to the root of the distribution. ``tests``: files
    or folders of its tests. ``path``: import roots (entries of PYTHONPATH). ``needs``: groups of wheels besides
    ``pytest``. ``exclude``: globs of test files that cannot run in a box (network, plugins). ``ini`` and ``options``:
    lines of the pytest configuration and arguments of pytest that the suite relies on. ``origin``: the source as it was
    given (``pypi:NAME==VERSION``, a folder, a repository), empty for packages of the catalogue; ``commit``: of a
    repository. ``history`` and ``history_sha256``: the bundle with the commits up to ``commit``, if commits are
    replayed. ``language``: ``node``, or empty for Python. ``integrity``: of an npm archive, as the registry states it.
    ``asked``: the ``--needs`` of the command line, including those that could not be fetched.

    ``below``: the wheels or modules in layers below the workspace; set by ``Catalogue.furnished``, never in a file.

    From an install (``tasks/install``): ``plugins``, entry points of the pytest plugins to load; ``metadata``,
    ``NAME==VERSION`` of the project's own installed metadata; ``install``, the digest of its lock; ``start``, the
    script that starts the services of the tests in every box; ``built``, files that were compiled from its sources.
    """

    name: str
    version: str
    file: str
    sha256: str
    licence: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    path: tuple[str, ...] = (".",)
    needs: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    ini: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    origin: str = ""
    commit: str = ""
    plugins: tuple[str, ...] = ()
    metadata: str = ""
    install: str = ""
    start: str = ""
    built: tuple[str, ...] = ()
    asked: tuple[str, ...] = field(default=(), repr=False)
    history: str = field(default="", repr=False)  # not in the key of the suite, which does not depend on these
    history_sha256: str = field(default="", repr=False)
    language: str = ""
    integrity: str = ""
    below: tuple[Wheel | Module, ...] = field(default=(), repr=False, compare=False)

    @property
    def kept(self) -> bool:
        """True if the build keeps the archive itself, because no package index has it."""
        return bool(self.install) or (bool(self.origin) and not self.origin.startswith("pypi:"))


@dataclass(frozen=True)
class Catalogue:
    """Pinned packages by name, and groups of pinned wheels that their tests need."""

    packages: dict[str, Package]
    wheels: dict[str, tuple[Wheel, ...]] = field(default_factory=dict)
    modules: dict[str, tuple[Module, ...]] = field(default_factory=dict)
    """Name of a Node project -> npm packages below its workspace."""

    def select(self, names: tuple[str, ...]) -> list[Package]:
        """The packages of these names, all if ``names`` is empty. Raises PackageError for an unknown name."""
        unknown = [n for n in names if n not in self.packages]
        if unknown:
            raise PackageError(f"package {unknown[0]!r} is not in the catalogue; it has {', '.join(self.packages)}")
        return [self.packages[n] for n in names] if names else list(self.packages.values())

    def wheels_of(self, package: Package) -> list[tuple[str, tuple[Wheel, ...]]]:
        """Return (group, wheels) of each group below a package's workspace, ``pytest`` first."""
        return [(group, self.wheels[group]) for group in ("pytest", *package.needs)]

    def furnished(self, package: Package) -> Package:
        """The package with ``below`` filled in."""
        if package.language == "node":
            return replace(package, below=self.modules.get(package.name, ()))
        return replace(package, below=tuple(wheel for _, wheels in self.wheels_of(package) for wheel in wheels))


def load_catalogue(path: Path | None = None) -> Catalogue:
    """Read a catalogue. Raises PackageError, which names the file and the field."""
    path = path or DEFAULT_CATALOGUE
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:  # ValueError: no TOML, or no UTF-8
        raise PackageError(f"{path}: {error}") from None
    wheels = {
        group: tuple(_typed(Wheel, entry, f"{path}: [wheels] {group}") for entry in entries)
        for group, entries in table.get("wheels", {}).items()
    }
    modules = {
        name: tuple(_typed(Module, entry, f"{path}: [modules] {name}") for entry in entries)
        for name, entries in table.get("modules", {}).items()
    }
    packages: dict[str, Package] = {}
    for number, entry in enumerate(table.get("package", [])):
        package = _typed(Package, entry, f"{path}: [[package]] {entry.get('name', number)}")
        missing = [g for g in ("pytest", *package.needs) if g not in wheels]
        if missing:
            raise PackageError(f"{path}: [[package]] {package.name}: needs {missing[0]!r}, which [wheels] lacks")
        packages[package.name] = package
    return Catalogue(packages, wheels, modules)


def dump_catalogue(catalogue: Catalogue) -> dict[str, Any]:
    """The tables of a catalogue file, as ``load_catalogue`` reads them."""
    wheels = {group: [vars(w) for w in entries] for group, entries in catalogue.wheels.items()}
    packages = [{k: v for k, v in vars(p).items() if v != "" and k != "below"} for p in catalogue.packages.values()]
    modules = {name: [vars(m) for m in entries] for name, entries in catalogue.modules.items()}
    return {"wheels": wheels, **({"modules": modules} if modules else {}), "package": packages}


def _typed(kind: type[Any], entry: dict[str, Any], where: str) -> Any:
    known = {f.name: f for f in fields(kind) if f.name != "below"}
    values: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in known:
            raise PackageError(f"{where}: unknown field {key!r}; known: {', '.join(known)}")
        listed = str(known[key].type).startswith("tuple")
        if listed != isinstance(value, list):
            raise PackageError(f"{where}: {key} must be a {'list of strings' if listed else 'string'}")
        values[key] = tuple(value) if listed else value
    try:
        made = kind(**values)
    except TypeError as error:
        raise PackageError(f"{where}: {str(error).split('__init__() ')[-1]}") from None
    if kind is Module and not made.integrity.startswith("sha512-"):
        raise PackageError(f"{where}: integrity must be sha512-BASE64")
    if kind is not Module and len(made.sha256) != 64:
        raise PackageError(f"{where}: sha256 must be 64 hexadecimal digits")
    return made
