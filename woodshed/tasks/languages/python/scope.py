"""Which names a wrong-variable mutation may use at a place: those surely bound there, so the bug is not a NameError."""

from __future__ import annotations

import ast
from typing import Any

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_in_scope(name: str, node: ast.Name, ancestors: tuple[tuple[ast.AST, str, Any], ...]) -> list[str]:
    """Local names other than ``name`` bound at ``node``; empty where ``name`` itself is not local to the function."""
    enclosing = (a for a, _, _ in reversed(ancestors) if isinstance(a, ast.FunctionDef | ast.AsyncFunctionDef))
    function = next(enclosing, None)
    if function is None or ancestors[-1][1] in ("defaults", "kw_defaults"):
        return []
    arguments = function.args
    bound = {a.arg: None for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for statement in function.body:
        _bind(statement, node.lineno, bound)
    for ancestor, field, _ in ancestors:
        if isinstance(ancestor, ast.Lambda) and field == "body":
            bound.update({a.arg: None for a in ancestor.args.args})
        if isinstance(ancestor, _COMPREHENSIONS) and field != "generators":
            for generator in ancestor.generators:
                bound.update(dict.fromkeys(_targets(generator.target)))
        if isinstance(ancestor, ast.comprehension) and field == "ifs":
            bound.update(dict.fromkeys(_targets(ancestor.target)))
    return [other for other in bound if other != name] if name in bound else []


def _bind(node: ast.AST, line: int, bound: dict[str, None]) -> None:
    """Names stored by statements before ``line``; a loop also binds for its own body."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    if isinstance(node, _COMPREHENSIONS):
        return
    if getattr(node, "lineno", 0) > line:
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.lineno < line:
        bound[node.id] = None
    for child in ast.iter_child_nodes(node):
        _bind(child, line, bound)


def _targets(target: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
