"""Reading and reducing Python sources for altered tests: placeholders, written constants, single tests, imports.

``placeholders`` completes the files that a task starts with. A commit's tests import names that only the commit
defines; without them no test of that file runs, not even the old ones. With a placeholder for each such name, tests
that do not use it answer as before. ``literals`` lists the constants of a test file, which a policy can read and which
altered tests pass to the code. ``only`` removes the tests that are not needed, because collecting a large file takes
most of its time.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from woodshed.record.python_source import parse_python
from woodshed.record.task import Task

_NOTHING = """

class _Nothing:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return None


"""


def placeholders(task: Task) -> dict[str, bytes]:
    """Return, with placeholders, workspace files that lack names of the solution, and new files of the solution."""
    start = task.workspace_files()
    found = {}
    for path, data in task.solution_files().items():
        if not path.endswith(".py"):
            continue
        missing = _names(data) - _names(start.get(path, b""))
        if missing or path not in start:
            lines = [f"class {name}(_Nothing):\n    pass\n" for name in sorted(missing)]
            found[path] = b"\n".join((start.get(path, b""), (_NOTHING + "\n\n".join(lines)).encode()))
    return found


def _names(data: bytes) -> frozenset[str]:
    """Return the names that a module defines at its top level, also inside ``if`` and ``try``."""
    try:
        tree = parse_python(data)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(name for name in _defined(tree.body) if not (name.startswith("__") and name.endswith("__")))


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((a.asname or a.name).partition(".")[0] for a in names if a.name != "*")
            case ast.Assign(targets=targets):
                yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.If(body=inner, orelse=other) | ast.Try(body=inner, orelse=other):
                yield from _defined([*inner, *other])
            case _:
                continue


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMMON = (None, True, False, 0, 1)
"""Constants that occur in every file and are plausible answers to everything."""


@lru_cache(maxsize=256)
def literals(source: str) -> dict[str, list[Any]]:
    """Map each test (``Class::test_it``) to the values written in it or outside all tests; ``""``: in the whole file.
    Parts of a written value are values too. Empty if the source is not Python."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return {}
    tests = dict(_tests(tree, ""))
    inside = {id(node) for test in tests.values() for node in ast.walk(test)}
    shared = list(_written(tree, inside))
    found = {name: [*shared, *_written(test, set())] for name, test in tests.items()}
    found[""] = [*shared, *(value for test in tests.values() for value in _written(test, set()))]
    return found


def _tests(body: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in body.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node, f"{prefix}{node.name}::")
        elif isinstance(node, _FUNCTIONS) and node.name.startswith("test"):
            yield prefix + node.name, node


def _written(tree: ast.AST, left_out: set[int]) -> Iterator[Any]:
    for node in ast.walk(tree):
        if id(node) in left_out or not isinstance(node, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set):
            continue
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        if not any(value is common for common in _COMMON):
            yield value


@lru_cache(maxsize=256)
def only(source: str, tests: frozenset[str]) -> str:
    """Remove functions whose names begin with ``test``, and classes that contain such functions. Those in ``tests``
    (names of classes and functions) stay, and so do those that the file refers to by name."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return source
    _drop(tree, tests | _named(tree))
    return ast.unparse(tree)


def _named(tree: ast.Module) -> set[str]:
    """Return all names that the file may look up."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.Constant(value=str() as name):
                found.add(name)
    return found


def _drop(body: ast.Module | ast.ClassDef, needed: frozenset[str]) -> None:
    kept: list[ast.stmt] = []
    for node in body.body:
        if isinstance(node, ast.ClassDef) and node.name in needed:
            _drop(node, needed)
            kept.append(node)
        elif isinstance(node, ast.ClassDef):
            kept += [] if any(map(_is_test, node.body)) else [node]
        elif not _is_test(node) or getattr(node, "name", "") in needed:
            kept.append(node)
    body.body = kept or [ast.Pass()]


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, _FUNCTIONS) and node.name.startswith("test")


def imported(name: str, source: str, files: Collection[str]) -> set[str]:
    """Return those of ``files`` (paths) that the test file ``name`` imports, and each ``conftest.py`` above it.

    Paths are compared by their last part alone, because import roots differ between projects. Empty if the source is
    not Python.
    """
    modules, relative = _imports(source)
    folder, found = PurePosixPath(name).parent, set[str]()
    for file in files:
        path = PurePosixPath(file)
        above = path.parent in (folder, *folder.parents)
        package = path.name == "__init__.py" and (path.parent.name in modules or (above and relative))
        if path.suffix == ".py" and (path.stem in modules or package or (above and path.name == "conftest.py")):
            found.add(file)
    return found


@lru_cache(maxsize=256)
def _imports(source: str) -> tuple[frozenset[str], bool]:
    """Return (all names in import statements and of plugins, whether one of them is relative)."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset(), False
    names, relative = set[str](), False
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {part for alias in aliases for part in alias.name.split(".")}
            case ast.ImportFrom(module=module, names=aliases, level=level):
                names |= {*(module or "").split("."), *(alias.name for alias in aliases)}
                relative = relative or bool(level)
            case ast.Assign(targets=[ast.Name(id="pytest_plugins")], value=value):
                texts = [one.value for one in ast.walk(value) if isinstance(one, ast.Constant)]
                names |= {part for text in texts if isinstance(text, str) for part in text.split(".")}
    return frozenset(names), relative
