"""Does Python source parse? Parsing runs nothing, so it happens in the harness."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

MAX_SOURCE = 200_000


@lru_cache(maxsize=2048)
def syntax_error(source: str) -> str | None:
    """None, or what is wrong and where. Source too long or too deeply nested to judge counts as fine."""
    if len(source) > MAX_SOURCE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})"
    except ValueError as error:
        return str(error)
    except (RecursionError, MemoryError, OverflowError):
        return None
    return None


def breaks_syntax(path: str, before: str, after: str) -> str | None:
    """The error where a Python file that parsed before no longer does."""
    if not path.endswith((".py", ".pyi")):
        return None
    error = syntax_error(after)
    return error if error is not None and syntax_error(before) is None else None
