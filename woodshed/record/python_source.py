"""Python source as a syntax tree, safe for threads."""

from __future__ import annotations

import ast
import threading
from contextlib import suppress
from typing import Literal, cast, overload

_TRIES = 4
_lock = threading.RLock()


@overload
def parse_python(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def parse_python(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def parse_python(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.Module | ast.Expression:
    """Return ``ast.parse(source, mode=mode)``. Raises SyntaxError, ValueError, RecursionError and MemoryError, as that.

    One thread at a time: until CPython 3.11.7, calls that overlap share a counter and fail with SystemError
    (github.com/python/cpython issue 106905). Other libraries' calls may overlap too, so such a call is repeated.
    """
    for _ in range(_TRIES):
        with suppress(SystemError):
            return _parsed(source, mode)
    return _parsed(source, mode)


def _parsed(source: str | bytes, mode: str) -> ast.Module | ast.Expression:
    with _lock:
        return cast(ast.Module | ast.Expression, ast.parse(source, mode=mode))


def is_literal(node: ast.AST) -> bool:
    """Return whether an expression is written in constants alone."""
    try:
        ast.literal_eval(cast(ast.expr, node))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
