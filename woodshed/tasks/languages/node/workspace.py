"""The workspace of a Node project: code, tests and text data by an allow-list of file types, and documentation."""

from __future__ import annotations

from pathlib import PurePosixPath

from woodshed.grading.node.syntax import SUFFIXES
from woodshed.tasks.packages.catalogue import Package
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.packages.workspace import below, is_text, surroundings

from .project import NodeProject


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALLOWED = _words(".js .cjs .mjs .json .txt .csv .tsv .yaml .yml .xml .html .css .sql .ini .tmpl .hbs .ejs")
_FORBIDDEN = _words("node_modules .git dist build coverage .nyc_output docs")


def workspace_of(package: Package, files: dict[str, bytes]) -> dict[str, bytes]:
    """The files that go into the workspace, and a ``package.json`` that only says how the code is loaded.

    Raises PackageError if a source or test root holds no usable file.
    """
    roots = (*package.sources, *package.tests)
    kept = {
        name: data
        for name, data in sorted(files.items())
        if any(below(name, root) for root in roots) and _allowed(name, data)
    }
    for root in roots:
        if not any(below(name, root) for name in kept):
            raise PackageError(f"{package.name} {package.version}: nothing that can be used lies under {root!r}")
    kept |= surroundings(files, kept, project=False)
    kept["package.json"] = NodeProject(files).minimal_package()
    return kept


def is_test(package: Package, name: str) -> bool:
    """Return whether a workspace file belongs to the tests, and so to the grader and not to the agent."""
    return name == "package.json" or any(below(name, root) for root in package.tests)


def is_source(package: Package, name: str) -> bool:
    """Return whether a workspace file is JavaScript under test."""
    return name.endswith(SUFFIXES) and not is_test(package, name)


def submission_globs(package: Package) -> tuple[str, ...]:
    """Globs of the files that cross into grading: the code under test."""
    found = []
    for root in package.sources:
        found += [root] if root.endswith(SUFFIXES) else [f"{root}/**/*{suffix}" for suffix in SUFFIXES]
    return tuple(found)


def protected_globs(package: Package) -> tuple[str, ...]:
    """Globs of the files whose changes never count."""
    tests = [root if PurePosixPath(root).suffix else f"{root}/**" for root in package.tests]
    return (*tests, "**/package.json", "**/node_modules/**", "**/.*")


def _allowed(name: str, data: bytes) -> bool:
    path = PurePosixPath(name)
    if path.suffix not in _ALLOWED or path.name.startswith("."):
        return False
    if path.name in ("package.json", "package-lock.json") or name.endswith(".min.js"):
        return False
    if any(part in _FORBIDDEN for part in path.parts[:-1]):
        return False
    return is_text(data)
