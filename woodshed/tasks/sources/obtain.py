"""Fetch the files of a source: from the index, a folder, or one commit of a repository."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from woodshed.record.atomic import write_whole
from woodshed.record.cache import cache_directory
from woodshed.tasks.languages.node import npm
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.index import Index, PackageError
from woodshed.tasks.packages.source import KEPT_SOURCES, fetch_package, read_sdist

from .layout import Layout
from .project import UNKNOWN, Project
from .repository import ShallowError, pack, read_folder, read_repository, write_bundle
from .requirements import canonical
from .spec import SourceSpec


def obtain(
    spec: SourceSpec, name: str, out: Path, *, history: bool = False, cache: Path | None = None
) -> tuple[Package, dict[str, bytes], list[str]]:
    """Fetch a source and return (package without its layout, its files, notes).

    Archives that no index has are kept below ``out``, with ``history`` also the commits of a repository. Raises
    PackageError, which says what is wrong with the source and what to do.
    """
    notes: list[str] = []
    commit, integrity = "", ""
    if spec.kind == "pypi":
        version, (file, sha256) = spec.version, _from_index(spec, cache)
    elif spec.kind == "npm":
        data = npm.pack(spec.place, spec.version)
        version, file, sha256 = spec.version, f"{name}-{spec.version}.tgz", hashlib.sha256(data).hexdigest()
        integrity = npm.integrity_of(data)
        write_whole(out / KEPT_SOURCES / file, data)
    else:
        git = spec.kind == "git"
        snapshot = read_repository(spec.place, spec.version) if git else read_folder(Path(spec.place))
        notes, commit = list(snapshot.notes), snapshot.commit
        data = pack(snapshot.files, name)
        sha256 = hashlib.sha256(data).hexdigest()
        version = commit[:12] or sha256[:12]
        file = f"{name}-{version}.tar.gz"
        write_whole(out / KEPT_SOURCES / file, data)
    package = Package(
        name=name,
        version=version,
        file=file,
        sha256=sha256,
        licence=UNKNOWN,
        sources=(),
        tests=(),
        origin=spec.origin,
        commit=commit,
        integrity=integrity,
    )
    if history and commit:
        bundle = f"{name}-{version}.bundle"
        try:
            commits = write_bundle(spec.place, commit, out / KEPT_SOURCES / bundle)
        except ShallowError as error:
            notes.append(f"no commits are replayed: {error}, and use another --out")
        else:
            package = replace(package, history=bundle, history_sha256=hashlib.sha256(commits).hexdigest())
    return package, read_sdist(fetch_package(package, out, cache=cache)), notes


def _from_index(spec: SourceSpec, cache: Path | None) -> tuple[str, str]:
    index = Index()
    try:
        listed = index.files(spec.place)
        wanted = f"{canonical(spec.place)}-{spec.version}".lower()
        archives = [f for f in listed if f.filename.endswith(".tar.gz")]
        found = [f for f in archives if _archive_name(f.filename) == wanted]
        if not found:
            known = sorted({f.filename for f in archives})[-5:]
            raise PackageError(
                f"{spec.text}: the index has no source distribution (.tar.gz) of this version; "
                f"it has {', '.join(known) or 'none at all'}"
            )
        if found[0].sha256:
            return found[0].filename, found[0].sha256
        data = index.download(found[0])
        sha256 = hashlib.sha256(data).hexdigest()
        write_whole((cache or cache_directory()) / "packages" / sha256[:16] / found[0].filename, data)
        return found[0].filename, sha256
    finally:
        index.close()


def _archive_name(filename: str) -> str:
    name, _, version = filename.removesuffix(".tar.gz").rpartition("-")
    return f"{canonical(name)}-{version}".lower()


def described(package: Package, project: Project, layout: Layout) -> Package:
    """The package with its licence and layout filled in."""
    return replace(
        package,
        licence=project.licence,
        sources=layout.sources,
        tests=layout.tests,
        path=layout.path,
        ini=layout.ini,
        options=layout.options,
    )


def project_names(spec: SourceSpec, project: Project) -> list[str]:
    """The names that the project gives itself."""
    if spec.kind == "pypi":
        return [spec.place]
    stated = (
        project.table("project").get("name"),
        project.table("tool", "poetry").get("name"),
        project.section("setup.cfg", "metadata").get("name"),
        project.metadata.get("Name"),
    )
    return [str(name) for name in stated if name]
