"""Which files of a project are code under test and which are tests, found by the usual conventions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

from woodshed.tasks.packages.index import PackageError

from .project import Project

_NOT_CODE = {
    "test", "tests", "testing", "doc", "docs", "example", "examples", "bench", "benchmark", "benchmarks", "script",
    "scripts", "tools", "tool", "ci", "build", "dist", "contrib", "demo", "demos", "samples", "notebooks", "tasks",
    "changelog.d", "news", "node_modules", "venv", "env",
}  # fmt: skip
_NOT_MODULES = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "fabfile.py", "manage.py", "bootstrap.py"}
_PYTEST_OPTIONS = ("python_files", "python_classes", "python_functions", "markers")


@dataclass(frozen=True)
class Layout:
    """As in ``Package``: ``sources``, ``tests``, ``path`` (import roots), ``ini`` (lines of pytest configuration)."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    path: tuple[str, ...]
    ini: tuple[str, ...]


def find_layout(project: Project, *, sources: Sequence[str] = (), tests: Sequence[str] = ()) -> Layout:
    """The layout of a project; ``sources`` and ``tests`` given by a person are taken as they are.

    Raises PackageError where it has no pytest suite or no Python code, or a path that was given holds nothing.
    """
    for root in (*sources, *tests):
        if not any(_below(name, root) for name in project.files):
            raise PackageError(f"{root!r} is neither a file nor a folder of the project")
    found_tests = tuple(tests) or _tests(project)
    if not found_tests:
        raise PackageError(
            "no tests: there is no testpaths setting, no folder called tests or test, and no file test_*.py; "
            "give their place with --tests"
        )
    base, found = _sources(project, found_tests)
    found = tuple(sources) or found
    if not found:
        raise PackageError("no Python code besides tests was found; give its place with --code")
    if sources:
        base = "src" if all(root.startswith("src/") for root in sources) else "."
    extra = [p.strip("/") or "." for p in project.pytest.get("pythonpath", "").split()]
    path = tuple(dict.fromkeys([base, *(p for p in extra if ".." not in PurePosixPath(p).parts)]))
    if base != ".":
        path = (*(p for p in path if p != "."), ".")  # tests may import each other as tests.something
    if "conftest.py" in project.files:
        found_tests = (*found_tests, "conftest.py")
    return Layout(found, found_tests, path, ini_lines(project))


def _tests(project: Project) -> tuple[str, ...]:
    patterns = project.pytest.get("python_files", "").split() or ["test_*.py", "*_test.py"]
    modules = [
        n for n in project.files
        if n.endswith(".py") and any(fnmatch(PurePosixPath(n).name, p) for p in [*patterns, "tests.py", "test.py"])
        and not {"docs", "doc", "examples", "build", "node_modules"} & set(PurePosixPath(n).parts[:-1])
    ]  # fmt: skip
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
    """``root``, or the folders of tests below it where every test is in one: the rest of it is code, not tests."""
    found: list[str] = []
    for parts in (PurePosixPath(m).parts[:-1] for m in modules if _below(m, root)):
        named = [i for i, part in enumerate(parts) if part in ("test", "tests", "testing")]
        if not named:
            return [root]
        found.append("/".join(parts[: named[0] + 1]))
    return found if all(_below(folder, root) for folder in found) else [root]


def _sources(project: Project, tests: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """(import root, roots of the code). ``src/`` first, then packages beside ``setup.py``, then single modules."""
    code = [n for n in project.files if n.endswith(".py") and not any(_below(n, t) for t in tests)]
    where = project.table("tool", "setuptools", "packages", "find").get("where")
    bases = [str(w).strip("/") for w in where] if isinstance(where, list) else []
    for base in (*(b for b in bases if b not in ("", ".")), "src", "lib"):
        below = _top(code, base)
        if below:
            return base, below
    return ".", _top(code, "")


def _top(code: Sequence[str], base: str) -> tuple[str, ...]:
    prefix = f"{base}/" if base else ""
    inner = [n.removeprefix(prefix) for n in code if n.startswith(prefix)]
    folders = sorted({n.partition("/")[0] for n in inner if "/" in n})
    folders = [f for f in folders if f.isidentifier() and (base or f.lower() not in _NOT_CODE)]
    packages = [f for f in folders if f"{f}/__init__.py" in inner]
    modules = sorted(n for n in inner if "/" not in n and n not in _NOT_MODULES and _module(n))
    if not base:
        modules = [] if packages else modules
    # A folder without __init__.py is a namespace package if there is nothing else that could be meant.
    chosen = [*packages, *modules] or folders
    return tuple(prefix + name for name in chosen)


def _module(name: str) -> bool:
    stem = name.removesuffix(".py")
    return stem.isidentifier() and not stem.startswith("test_") and not stem.endswith("_test")


def ini_lines(project: Project, options: Sequence[str] = _PYTEST_OPTIONS) -> tuple[str, ...]:
    """The options that decide what a test is; everything else (plugins, warnings as errors) stays out."""
    lines = []
    for option in options:
        values = [v.strip() for v in project.pytest.get(option, "").splitlines() if v.strip()]
        if values:
            lines.append(f"{option} =\n" + "\n".join(f"    {v}" for v in values))
    return tuple(lines)


def _below(name: str, root: str) -> bool:
    return name == root or name.startswith(root.rstrip("/") + "/")
