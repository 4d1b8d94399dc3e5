"""The workspace of a package: the files that an agent may see, chosen by an allow-list of file types.

It holds the code under test, its tests and their text data, and, as in a real repository, README, documentation and
project files. Metadata, change logs, bytecode, caches, build products and version control can hold the answer and are
left out. Everything else goes through the leak scan; documentation that holds the answer of a task is missing in that
task only (``generators/packages/trial.py``).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath

from .catalogue import Package
from .index import PackageError

MAX_FILE_BYTES = 512 << 10
MAX_BYTES = 2 << 20
"""Limit of README, documentation and project files together; the first by name are taken."""

_TEXT = frozenset((".md", ".rst", ".txt"))
_PROSE = re.compile(r"(?i)(?:readme|contributing|licen[cs]e|copying|authors|security|code_of_conduct)(?:\.\w+)?")
_PROJECT = frozenset(
    (
        "pyproject.toml",
        "setup.cfg",
        "setup.py",
        "tox.ini",
        "MANIFEST.in",
        "Makefile",
        "mypy.ini",
        ".editorconfig",
        ".gitignore",
    )
)
_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(?:txt|in)")
_LOG = re.compile(r"(?i)(?:^|[/_.-])(?:changes|changelog|history|news|release[s_-]?(?:notes)?|whatsnew|migrat\w*)\b")
_DOCS = ("docs", "doc")


def surroundings(files: Mapping[str, bytes], taken: Collection[str] = (), *, project: bool = True) -> dict[str, bytes]:
    """README, documentation and, with ``project``, Python project files among ``files``, without those ``taken``."""
    found: dict[str, bytes] = {}
    total = 0
    for name, data in sorted(files.items()):
        if name in taken or not is_surrounding(name, project=project) or not is_text(data):
            continue
        if total + len(data) <= MAX_BYTES:
            found[name] = data
            total += len(data)
    return found


def is_surrounding(name: str, *, project: bool = True) -> bool:
    """Return whether a file is README, documentation or a project file."""
    path = PurePosixPath(name)
    if _LOG.search(name):
        return False
    if path.parts[0].lower() in _DOCS and len(path.parts) > 1:
        return path.suffix in _TEXT and not any(part.startswith((".", "_build")) for part in path.parts)
    if len(path.parts) > 1:
        return False
    named = path.name in _PROJECT or _REQUIREMENTS.fullmatch(path.name) is not None
    return _PROSE.fullmatch(path.name) is not None or (project and named)


def is_text(data: bytes) -> bool:
    """Return whether a file is UTF-8 text of at most MAX_FILE_BYTES."""
    if len(data) > MAX_FILE_BYTES or b"\0" in data:
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_SUFFIXES = _words(".py .pyi .typed .txt .json .toml .sql .csv .tsv .yaml .yml .ini .cfg .xml .html .rst .md")
_FORBIDDEN_PARTS = ("__pycache__", "build", "dist", ".git", ".tox", ".nox", "docs", "node_modules")
_CONFIGURATION = _words("pytest.ini .pytest.ini tox.ini setup.cfg setup.py pyproject.toml sitecustomize.py")


def workspace_of(package: Package, files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a source distribution that go into the workspace, and our ``pytest.ini``.

    Raises PackageError if a source or test root of the package holds no file.
    """
    roots = (*package.sources, *package.tests)
    packages = {str(PurePosixPath(name).parent) for name in files if PurePosixPath(name).name == "__init__.py"}
    kept = {
        name: data
        for name, data in sorted(files.items())
        if any(below(name, root) for root in roots)
        and (_allowed(name, data, packages) or name in package.built)
        and not any(fnmatch(name, pattern) for pattern in package.exclude)
    }
    for root in roots:
        if not any(below(name, root) for name in kept):
            raise PackageError(f"{package.name} {package.version}: the source distribution has nothing under {root!r}")
    kept |= surroundings(files, kept)
    kept["pytest.ini"] = pytest_ini(package)
    return kept


def is_test(package: Package, name: str) -> bool:
    """Return whether a workspace file belongs to the tests, and so to the grader and not to the agent."""
    return name == "pytest.ini" or any(below(name, root) for root in package.tests)


def is_source(package: Package, name: str) -> bool:
    """Return whether a workspace file is Python code under test."""
    return name.endswith(".py") and not is_test(package, name) and any(below(name, r) for r in package.sources)


def pytest_ini(package: Package) -> bytes:
    """Return the only pytest configuration in force. It keeps the part of the package's own that selects tests."""
    loaded = "".join(f" -p {name}" for name in package.plugins)  # grading loads no other plugins
    own = f" {shlex.join(package.options)}" if package.options else ""
    addopts = f"addopts = -p no:cacheprovider{loaded}{own}"
    lines = ["[pytest]", addopts, f"pythonpath = {' '.join(package.path)}", *package.ini]
    return ("\n".join(lines) + "\n").encode()


def submission_globs(package: Package) -> tuple[str, ...]:
    """Globs of the files that cross into grading: the code under test."""
    return tuple(root if root.endswith(".py") else f"{root}/**/*.py" for root in package.sources)


def protected_globs(package: Package) -> tuple[str, ...]:
    """Globs of the files whose changes never count."""
    tests = [root if PurePosixPath(root).suffix else f"{root}/**" for root in package.tests]
    return (*tests, "pytest.ini", "**/conftest.py", "**/sitecustomize.py", "**/usercustomize.py")


def below(name: str, root: str) -> bool:
    return name == root or name.startswith(root.rstrip("/") + "/")


def _allowed(name: str, data: bytes, packages: Collection[str]) -> bool:
    """Return whether a file may be in a workspace. ``packages``: folders that are Python packages, which are code also
    where they are called ``build``, ``dist`` or ``docs``."""
    path = PurePosixPath(name)
    if path.suffix not in ALLOWED_SUFFIXES or path.name in _CONFIGURATION or len(data) > MAX_FILE_BYTES:
        return False
    for folder in path.parents:
        if folder.name.endswith(".egg-info") or (folder.name in _FORBIDDEN_PARTS and str(folder) not in packages):
            return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
