"""Tables that hold the tests' arguments as text, whatever the language."""

from __future__ import annotations

import ast
import re

TABLE = "a table"
"""Stands for the function where answers are counted: such tables often lie outside of any."""

_LONGEST = 2000
_NAME = re.compile(r"[A-Za-z_$][\w$]*(?=[(\[{])")
_CONSTANT = re.compile(r"\b(?:true|false|null|undefined)\b")


def is_call(key: str) -> bool:
    """Whether a key is the arguments of a call: ``area[2, 3]``, ``area(2)``, ``('area', (2, 3), {})``, ``2,3``."""
    key = key.strip()
    if len(key) > _LONGEST:
        return False
    name = _NAME.match(key)
    if name is not None:
        key = key[name.end() :]
        if key.startswith("(") and key.endswith(")"):
            key = f"[{key[1:-1]}]"
    try:
        value = ast.literal_eval(_CONSTANT.sub("None", key))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return isinstance(value, tuple | list | dict) and (bool(value) or name is not None)
