"""What a test file writes out: its constants, which a policy can read, and which altered tests hand to the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMMON = (None, True, False, 0, 1)
"""They stand in every file, and are answers to everything."""


@lru_cache(maxsize=256)
def literals(source: str) -> dict[str, list[Any]]:
    """Function (``Class::test_it``) -> values that are written out in it, or outside of all tests; ``""``: all of the
    file. Parts of a written value are values too. Empty for what is no Python."""
    try:
        tree = ast.parse(source)
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
