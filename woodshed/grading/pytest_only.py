"""A test file without the tests that nobody asks for: of a large one, most of the time goes into collecting them."""

from __future__ import annotations

import ast
from functools import lru_cache

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=256)
def only(source: str, tests: frozenset[str]) -> str:
    """``source`` without functions whose names begin with ``test``, and classes that have no other, but for those
    named in ``tests`` (names of classes and functions) and those that something in the file names."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    _drop(tree, tests | _named(tree))
    return ast.unparse(tree)


def _named(tree: ast.Module) -> set[str]:
    """Everything that the file may look up by name."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.Constant(value=str() as name):
                found.add(name)
    return found


def _drop(body: ast.Module | ast.ClassDef, needed: set[str] | frozenset[str]) -> bool:
    """Whether tests are left out of ``body``, and none is left."""
    kept: list[ast.stmt] = []
    tests = dropped = 0
    for node in body.body:
        emptied = isinstance(node, ast.ClassDef) and _drop(node, needed)
        test = isinstance(node, _FUNCTIONS) and node.name.startswith("test")
        if (emptied or test) and node.name not in needed:  # type: ignore[attr-defined]
            dropped += 1
        else:
            kept.append(node)
            tests += test or isinstance(node, ast.ClassDef)
    body.body = kept or [ast.Pass()]
    return bool(dropped and not tests)
