"""Find the code under test and the tests of a project by the usual conventions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from woodshed.tasks.packages.index import PackageError

from .project import Project
from .spec import own_options

_NOT_CODE = {
    "test",
    "tests",
    "testing",
    "doc",
    "docs",
    "example",
    "examples",
    "bench",
    "benchmark",
    "benchmarks",
    "script",
    "scripts",
    "tools",
    "tool",
    "ci",
    "build",
    "dist",
    "contrib",
    "demo",
    "demos",
    "samples",
    "notebooks",
    "tasks",
    "changelog.d",
    "news",
    "node_modules",
    "venv",
    "env",
}
_NOT_MODULES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py", "manage.py", "bootstrap.py"}
_PYTEST_OPTIONS = (
    "python_files",
    "python_classes",
    "python_functions",
    "markers",
    "norecursedirs",
    "usefixtures",
    "consider_namespace_packages",
)
_MEMBER_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_MEMBER_DEPTH = 3
"""Depth below the root at which projects of a monorepo are looked for."""


@dataclass(frozen=True)
class Layout:
    """The layout of a project, with the fields of ``Package``: ``sources``, ``tests``, ``path`` (import roots), ``ini``
    (lines of pytest configuration), ``options`` (arguments of pytest)."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    path: tuple[str, ...]
    ini: tuple[str, ...]
    options: tuple[str, ...] = ()


def find_layout(
    project: Project,
    *,
    sources: Sequence[str] = (),
    tests: Sequence[str] = (),
    roots: Sequence[str] = (),
    markers: str = "",
) -> Layout:
    """The layout of a project. ``sources``, ``tests`` and import ``roots`` from the command line are taken as they are.

    ``markers``: replaces the marker expression of the project. Raises PackageError if the project has no pytest suite
    or no Python code, or if a given path holds no file.
    """
    roots = [root.strip("/") for root in roots]
    for root in (*sources, *tests, *(r for r in roots if r != ".")):
        if not any(_below(name, root) for name in project.files):
            raise PackageError(f"{root!r} is neither a file nor a folder of the project")
    found_tests = tuple(tests) or _tests(project)
    if not found_tests:
        raise PackageError(
            "no tests: there is no testpaths setting, no folder called tests or test, and no file test_*.py; "
            "give their path with --tests"
        )
    bases, found = _sources(project, found_tests, roots)
    found = tuple(sources) or found
    if not found:
        raise PackageError("no Python code besides tests was found; give its path with --code")
    if sources and not roots:
        within = [base for base in (*bases, "src") if any(_below(root, base) for root in sources)]
        covered = all(any(_below(root, base) for base in within) for root in sources)
        bases = tuple(dict.fromkeys(within)) if covered else (".",)
    extra = [p.strip("/") or "." for p in project.pytest.get("pythonpath", "").split()]
    path = tuple(dict.fromkeys([*bases, *(p for p in extra if ".." not in PurePosixPath(p).parts)]))
    if bases != (".",):
        path = (*(p for p in path if p != "."), ".")  # tests may import each other as tests.something
    if "conftest.py" in project.files:
        found_tests = (*found_tests, "conftest.py")
    return Layout(
        sources=found, tests=found_tests, path=path, ini=ini_lines(project), options=own_options(project, markers)
    )


def _tests(project: Project) -> tuple[str, ...]:
    patterns = project.pytest.get("python_files", "").split() or ["test_*.py", "*_test.py"]
    modules = [
        n
        for n in project.files
        if n.endswith(".py")
        and any(fnmatch(PurePosixPath(n).name, p) for p in [*patterns, "tests.py", "test.py"])
        and not {"docs", "doc", "examples", "build", "node_modules"} & set(PurePosixPath(n).parts[:-1])
    ]
    stated = [p.strip("./ ") for p in re.split(r"[\s,]+", project.pytest.get("testpaths", "")) if p.strip("./ ")]
    roots = [root for root in stated if any(_below(m, root) for m in modules)]
    if roots:
        return tuple(dict.fromkeys(folder for root in roots for folder in _narrowed(root, modules)))
    folders: list[str] = []
    for module in sorted(modules, key=lambda m: m.count("/")):
        parts = PurePosixPath(module).parts
        named = [i for i, part in enumerate(parts[:-1]) if part in ("test", "tests", "testing")]
        root = "/".join(parts[: named[0] + 1]) if named else module
        if not any(_below(root, f) for f in folders):
            folders.append(root)
    return tuple(folders)


def _narrowed(root: str, modules: Sequence[str]) -> list[str]:
    """The folders of tests below ``root`` if every test is in one (the rest is code then), else ``root`` itself."""
    found: list[str] = []
    for parts in (PurePosixPath(m).parts[:-1] for m in modules if _below(m, root)):
        named = [i for i, part in enumerate(parts) if part in ("test", "tests", "testing")]
        if not named:
            return [root]
        found.append("/".join(parts[: named[0] + 1]))
    return found if all(_below(folder, root) for folder in found) else [root]


def _sources(
    project: Project, tests: Sequence[str], roots: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (import roots, roots of the code): from the given ``roots``, else ``src/``, packages beside ``setup.py``,
    the projects of a monorepo, or single modules."""
    code = [n for n in project.files if n.endswith(".py") and not any(_below(n, t) for t in tests)]
    if roots:
        return tuple(roots), _below_all(code, roots)
    where = project.table("tool", "setuptools", "packages", "find").get("where")
    bases = [str(w).strip("/") for w in where] if isinstance(where, list) else []
    for base in (*(b for b in bases if b not in ("", ".")), "src", "lib"):
        below = _top(code, base)
        if below:
            return (base,), below
    above = _top(code, "")
    if not any(f"{name}/__init__.py" in project.files for name in above) and (members := _members(project, code)):
        return members, _below_all(code, members, members=True)
    return (".",), above


def _below_all(code: Sequence[str], roots: Sequence[str], *, members: bool = False) -> tuple[str, ...]:
    found = [
        name
        for root in roots
        for name in _top(code, "" if root == "." else root, member=members and not root.endswith("/src"))
    ]
    return tuple(dict.fromkeys(found))


def _members(project: Project, code: Sequence[str]) -> tuple[str, ...]:
    """Import roots of the projects of a monorepo: folders with their own project files, or ``src`` in them."""
    folders = {
        PurePosixPath(name).parent
        for name in project.files
        if PurePosixPath(name).name in _MEMBER_FILES and 0 < name.count("/") <= _MEMBER_DEPTH
    }
    found = []
    for folder in sorted(f.as_posix() for f in folders if not _NOT_CODE & set(f.parts)):
        packages = [n for n in _top(code, f"{folder}/src") if f"{n}/__init__.py" in project.files]
        root = f"{folder}/src" if packages else folder
        if any(f"{n}/__init__.py" in project.files for n in _top(code, root, member=not packages)):
            found.append(root)
    return tuple(found)


def _top(code: Sequence[str], base: str, *, member: bool = False) -> tuple[str, ...]:
    """Return the paths that can be imported from ``base``. ``member``: ``base`` is a project folder, not only code."""
    mixed = member or not base
    prefix = f"{base}/" if base else ""
    inner = [n.removeprefix(prefix) for n in code if n.startswith(prefix)]
    folders = sorted({n.partition("/")[0] for n in inner if "/" in n})
    folders = [f for f in folders if f.isidentifier() and (not mixed or f.lower() not in _NOT_CODE)]
    packages = [f for f in folders if f"{f}/__init__.py" in inner]
    modules = sorted(n for n in inner if "/" not in n and n not in _NOT_MODULES and _module(n))
    if mixed:
        modules = [] if packages else modules
    # A folder without __init__.py counts as namespace package only if there is nothing else to import.
    chosen = [*packages, *modules] or folders
    return tuple(prefix + name for name in chosen)


def _module(name: str) -> bool:
    stem = name.removesuffix(".py")
    return stem.isidentifier() and not stem.startswith("test_") and not stem.endswith("_test")


def ini_lines(project: Project, options: Sequence[str] = _PYTEST_OPTIONS) -> tuple[str, ...]:
    """Lines of pytest configuration that decide what is a test; others (plugins, warnings as errors) are left out."""
    lines = []
    for option in options:
        values = [v.strip() for v in project.pytest.get(option, "").splitlines() if v.strip()]
        if values:
            lines.append(f"{option} =\n" + "\n".join(f"    {v}" for v in values))
    return tuple(lines)


def _below(name: str, root: str) -> bool:
    return name == root or name.startswith(root.rstrip("/") + "/")
