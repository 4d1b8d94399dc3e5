"""The files that a task starts with, such that its tests can be loaded: names that only the solution has stand for
nothing.

A commit's tests import what the commit defines, so without it not one test of their file runs, the old ones neither.
With a placeholder, those that do not need it answer as they always did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from woodshed.record.task import Task

_NOTHING = """

class _Nothing:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return None


"""


def placeholders(task: Task) -> dict[str, bytes]:
    """Files of the workspace that lack names of the solution's, with a placeholder for each, and those it has new."""
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
    """What a module defines, at its top level or below a condition there."""
    try:
        tree = ast.parse(data)
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
