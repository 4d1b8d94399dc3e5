"""The workspace of a package: what an agent may see of it, scrubbed by an allow-list of file types.

Code under test, its tests and their plain-text data are taken, and what a repository has around them
(``surroundings.py``). Metadata, change logs, bytecode, caches, build products and version control of a source
distribution can hold the answer, and none is copied.

What a repository has around its code and tests: README, documentation, project files. Realistic workspaces keep it.

Change logs are left out, since they tell what was fixed; everything that stays goes through the leak scan, and a file
that holds the answer of a task is missing in that task alone (``trial.py``).
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
"""Of all such files together; the first by name are taken."""

_TEXT = frozenset((".md", ".rst", ".txt"))
_PROSE = re.compile(r"(?i)(?:readme|contributing|licen[cs]e|copying|authors|security|code_of_conduct)(?:\.\w+)?")
_PROJECT = frozenset((
    "pyproject.toml", "setup.cfg", "setup.py", "tox.ini", "MANIFEST.in", "Makefile", "mypy.ini", ".editorconfig",
    ".gitignore",
))  # fmt: skip
_REQUIREMENTS = re.compile(r"requirements[\w.-]*\.(?:txt|in)")
_LOG = re.compile(r"(?i)(?:^|[/_.-])(?:changes|changelog|history|news|release[s_-]?(?:notes)?|whatsnew|migrat\w*)\b")
_DOCS = ("docs", "doc")


def surroundings(files: Mapping[str, bytes], taken: Collection[str] = (), *, project: bool = True) -> dict[str, bytes]:
    """Those of ``files``, besides what is ``taken`` already. ``project``: project files too, those of Python."""
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
    """Whether a file is one of the kinds that are kept beside code and tests."""
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
    """Whether a file is UTF-8 text of at most MAX_FILE_BYTES."""
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
    """Source and test files of a source distribution that go into the workspace, what a repository has around them,
    and our ``pytest.ini``.

    Raises PackageError where a source or test root that the catalogue names holds nothing.
    """
    roots = (*package.sources, *package.tests)
    kept = {
        name: data
        for name, data in sorted(files.items())
        if any(below(name, root) for root in roots)
        and (_allowed(name, data) or name in package.built)
        and not any(fnmatch(name, pattern) for pattern in package.exclude)
    }
    for root in roots:
        if not any(below(name, root) for name in kept):
            raise PackageError(f"{package.name} {package.version}: the source distribution has nothing under {root!r}")
    kept |= surroundings(files, kept)
    kept["pytest.ini"] = pytest_ini(package)
    return kept


def is_test(package: Package, name: str) -> bool:
    """Whether a workspace file belongs to the tests (and is the grader's, not the agent's)."""
    return name == "pytest.ini" or any(below(name, root) for root in package.tests)


def is_source(package: Package, name: str) -> bool:
    """Whether a workspace file is Python code under test."""
    return name.endswith(".py") and not is_test(package, name) and any(below(name, r) for r in package.sources)


def pytest_ini(package: Package) -> bytes:
    """The only pytest configuration in force; of the distribution's own it has what says which tests there are."""
    loaded = "".join(f" -p {name}" for name in package.plugins)  # no other plugin is loaded where tasks are graded
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


def _allowed(name: str, data: bytes) -> bool:
    path = PurePosixPath(name)
    if path.suffix not in ALLOWED_SUFFIXES or path.name in _CONFIGURATION or len(data) > MAX_FILE_BYTES:
        return False
    if any(part in _FORBIDDEN_PARTS or part.endswith(".egg-info") for part in path.parts[:-1]):
        return False
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
