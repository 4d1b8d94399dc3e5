"""A test file without the tests that nobody asks for: of a large one, most of the time goes into collecting them."""

from __future__ import annotations

import ast
from functools import lru_cache

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=256)
def only(source: str, tests: frozenset[str]) -> str:
    """``source`` without functions whose names begin with ``test``, and classes that have such, but for those named in
    ``tests`` (names of classes and functions) and those that something in the file names."""
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
