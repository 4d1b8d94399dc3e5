"""The changes that an install recipe makes to the repository: files that it adds, and forbidden changes.

Also the place of a handed-in recipe, and helpers to run commands in its box.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePosixPath

from woodshed.sandbox.protocol import ExecResult, Sandbox

WORKDIR = "/workspace"
SCRATCH = ".woodshed"
"""Folder of the workspace for the handed-in recipe; not part of the repository."""

SETUP = f"{SCRATCH}/setup.sh"
SETUP_SECONDS, TARGET_SECONDS = 900.0, 300.0

_LIST = """
import json, pathlib, site
folder = pathlib.Path(site.getusersitepackages())
print(json.dumps(sorted(p.name.removesuffix(".dist-info") for p in folder.glob("*.dist-info"))))
"""


async def shell(box: Sandbox, command: str, *, timeout: float) -> ExecResult:
    """Run a command line in the workspace; standard error goes to standard output."""
    return await box.exec(f"exec 2>&1\n{command}", cwd=WORKDIR, timeout=timeout, max_output=1 << 20)


async def installed_in(box: Sandbox) -> list[str]:
    """Return ``NAME-VERSION`` of the installed packages; used only to look up wheels of the index."""
    done = await box.exec(["python3", "-I", "-c", _LIST], timeout=30.0)
    try:
        found = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return []
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


MAX_ADDED, MAX_ADDED_BYTES = 200, 512 << 10

_PASSING = {"__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache", "build", "dist", SCRATCH}
_CONFIGURATION = {
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    "setup.cfg",
    "setup.py",
    "pyproject.toml",
    "GNUmakefile",
    "makefile",
    "Makefile",
    "noxfile.py",
}


CONFIGURES = "configures the interpreter or the test runner"
TAKES = "takes the place of a module that exists"
COMPILED = "compiled code that nobody can read"
OWN_TESTS = "; the tests are the repository's own"

Refusal = Callable[[PurePosixPath], str]
"""Returns the reason why an added file is refused, as the rest of ``it adds NAME...``; empty if it is allowed."""


def changes(
    before: Mapping[str, bytes], left: Mapping[str, bytes], refusal: Refusal, passing: Collection[str] = ()
) -> tuple[dict[str, bytes], list[str]]:
    """Compare the files ``before`` a recipe with those that it ``left``: return the added files, and forbidden changes
    as texts. ``passing``: further names of files and folders that may be added and deleted."""
    skipped = {*_PASSING, *passing}
    lost = [n for n in before if n not in left and not _passes(n, skipped)]
    altered = [n for n, data in before.items() if n in left and left[n] != data]
    added = {n: data for n, data in left.items() if n not in before and not _passes(n, skipped)}
    problems = [f"it deletes {n}; the repository must stay as it is" for n in lost[:3]]
    problems += [f"it changes {n}; the repository must stay as it is" for n in altered[:3]]
    for name, data in added.items():
        if why := refusal(PurePosixPath(name)):
            problems.append(f"it adds {name}{why}")
        elif len(data) > MAX_ADDED_BYTES:
            problems.append(f"it adds {name}, which is larger than {MAX_ADDED_BYTES >> 10} KiB")
    if len(added) > MAX_ADDED:
        problems.append(f"it adds {len(added)} files to the repository; at most {MAX_ADDED} are kept")
    return added, problems[:10]


def python_refusal(roots: Iterable[str], taken: Collection[str], files: Iterable[str] = ()) -> Refusal:
    """Return the rule for Python projects. ``roots``: import roots; ``taken``: top-level modules that exist already.
    ``files``: the repository's files, whose modules may get files of their own but not a copy below another root, nor
    one beside a script, whose folder Python searches first."""
    roots = tuple(roots)
    modules = [PurePosixPath(file) for file in files if file.endswith(".py")]
    own: dict[str, set[str]] = {}
    for file in modules:
        root, module = _import_name(str(file), roots)
        own.setdefault(module, set()).add(root)
    folders = {folder for file in modules for folder in file.parents}
    scripts = {file.parent for file in modules} - {file.parent for file in modules if file.name == "__init__.py"}

    def why(path: PurePosixPath) -> str:
        stem = path.name.removesuffix(".py")
        if path.name in _CONFIGURATION or path.suffix in (".pth", ".pyc"):
            return f", which {CONFIGURES}"
        if path.suffix == ".py" and (stem.startswith("test_") or stem.endswith("_test")):
            return OWN_TESTS
        for folder in scripts.intersection(path.parents) if path.suffix == ".py" else ():
            top = path.relative_to(folder).parts[0]
            beside, places = top.removesuffix(".py"), own.get(top.removesuffix(".py"), set())
            if folder / top in folders:
                continue
            if beside in sys.stdlib_module_names or beside in taken or places - {str(folder)}:
                return f", which {TAKES}"
        root, module = _import_name(str(path), roots)
        if module in sys.stdlib_module_names or module in taken or root not in own.get(module, (root,)):
            return f", which {TAKES}"
        return f", {COMPILED}" if ".so" in path.suffixes else ""

    return why


def _passes(name: str, skipped: Collection[str]) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".pyc" or any(p in skipped or p.endswith(".egg-info") for p in path.parts)


def _import_name(name: str, roots: Iterable[str]) -> tuple[str, str]:
    """Return the import root from which a file is importable, and its top-level module; both empty if there is none."""
    for root in sorted(roots, key=len, reverse=True):
        prefix = "" if root == "." else f"{root}/"
        if name.startswith(prefix):
            top = name.removeprefix(prefix).partition("/")[0]
            is_module = "/" in name.removeprefix(prefix) or name.endswith(".py")
            return (root, top.removesuffix(".py")) if is_module else ("", "")
    return "", ""
