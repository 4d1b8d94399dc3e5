"""Static screen of a submission for the ``pytest`` grader: what no honest change to library code needs.

Test and submission share a process there, so the submission could reach for the runner. The runner notices when the
framework was changed; this screen refuses the means to do it unnoticed. It compares with the files the task started
from and with the reference solution: a construct that either already uses in the same file is never held against a
submission. It is a heuristic (a name can be built from pieces at run time), one layer of several.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words(
    "pytest _pytest pluggy unittest gc ctypes _ctypes atexit signal faulthandler site sitecustomize mmap _testcapi "
    "_testinternalcapi tracemalloc subprocess multiprocessing socket pty resource dis marshal"
)
_ATTRIBUTES = _words(
    "_getframe _current_frames currentframe getouterframes f_back f_locals f_globals f_builtins tb_frame tb_next "
    "gi_frame cr_frame settrace setprofile meta_path path_hooks __subclasses__ __closure__ cell_contents __code__ "
    "_exit _exithandlers abort fork execv execve dup2 stack"
)
_NAMES = _words("exec eval compile __import__ breakpoint exit quit SystemExit __builtins__")
_METHODS = _words(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __instancecheck__ __subclasscheck__ __getattribute__ __del__"
)
_STRINGS = ("PYTEST_", "/proc/", "_pytest", "conftest", "pytest_runtest")


def screen(submission: Mapping[str, bytes], *known: Mapping[str, bytes]) -> list[str]:
    """Constructs of the submitted Python files that none of the ``known`` versions of the same file uses.

    Each entry reads ``path: construct``; empty for an unsuspicious submission. Files that do not parse are left to
    the tests.
    """
    found: list[str] = []
    for path, data in sorted(submission.items()):
        if not path.endswith(".py"):
            continue
        suspicious = _constructs(data)
        for version in known:
            suspicious -= _constructs(version.get(path, b""))
        found += [f"{path}: {construct}" for construct in sorted(suspicious)]
    return found


def _constructs(data: bytes) -> set[str]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    return set(_suspicious(tree))


def _suspicious(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _framework(alias.name):
                    yield f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            if _framework(node.module):
                yield f"import {node.module}"
            for alias in node.names:
                if alias.name in _ATTRIBUTES or (node.module, alias.name) == ("sys", "modules"):
                    yield f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Attribute):
            if node.attr in _ATTRIBUTES or (
                node.attr in ("modules", "exit") and isinstance(node.value, ast.Name) and node.value.id == "sys"
            ):
                yield f".{node.attr}"
        elif isinstance(node, ast.Name) and node.id in _NAMES:
            yield node.id
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in _METHODS:
            yield f"def {node.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not _is_prose(node.value):
            if any(s in node.value for s in _STRINGS):
                yield f"string {next(s for s in _STRINGS if s in node.value)!r}"
            elif node.value in _ATTRIBUTES or node.value in _METHODS:
                yield f"string {node.value!r}"


def _framework(module: str) -> bool:
    """Plugins of the test runner hold a reference to it: ``pytest_asyncio``, ``anyio.pytest_plugin``."""
    return module.partition(".")[0] in _MODULES or any("pytest" in part for part in module.split("."))


def _is_prose(text: str) -> bool:
    return " " in text.strip() and "\n" in text  # a docstring may speak of anything
