"""What a ``setup.py`` says that its project needs, as far as it is written down there: read as a tree, never run."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Stated:
    """``install``: lines of ``install_requires``; ``groups``: those of ``extras_require`` by name, and of
    ``tests_require`` as ``tests``."""

    install: tuple[str, ...] = ()
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read_setup(text: str) -> Stated:
    """The literals in the call of ``setup``, also by the names of variables of the module and as sums of lists.

    Whatever is computed otherwise counts as not stated.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Stated()
    known: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _assign(node.targets[0], _value(node.value, known), known)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _name(n.func) == "setup"]
    given = {k.arg: _value(k.value, known) for call in calls[:1] for k in call.keywords if k.arg}
    extras = given.get("extras_require")
    groups = {str(k): _lines(v) for k, v in extras.items()} if isinstance(extras, dict) else {}
    if tests := _lines(given.get("tests_require")):
        groups["tests"] = (*groups.get("tests", ()), *tests)
    return Stated(_lines(given.get("install_requires")), groups)


def _assign(target: ast.expr, value: Any, known: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        known[target.id] = value
    elif isinstance(target, ast.Subscript) and isinstance(table := _value(target.value, known), dict):
        key = _value(target.slice, known)
        if isinstance(key, str):
            table[key] = value


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """A text, a list or a table, None for what is not written down."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(element, known) for element in node.elts]
    if isinstance(node, ast.Dict):
        pairs = [(_value(k, known), _value(v, known)) for k, v in zip(node.keys, node.values) if k is not None]
        return {k: v for k, v in pairs if isinstance(k, str)}
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _value(node.left, known), _value(node.right, known)
        return [*left, *right] if isinstance(left, list) and isinstance(right, list) else left or right
    if isinstance(node, ast.Subscript):
        table, key = _value(node.value, known), _value(node.slice, known)
        return table.get(key) if isinstance(table, dict) and isinstance(key, str) else None
    return None


def _lines(value: Any) -> tuple[str, ...]:
    lines = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else []
    return tuple(line for line in lines if isinstance(line, str))


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
