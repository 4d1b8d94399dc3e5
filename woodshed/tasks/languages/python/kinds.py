"""The kinds of mutation: for each syntax node, its wrong replacements.

A wrong-variable mutation uses only names that are certainly bound at its place, so the bug is not a NameError.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names_in_scope(name: str, node: ast.Name, ancestors: tuple[tuple[ast.AST, str, Any], ...]) -> list[str]:
    """Local names other than ``name`` bound at ``node``; empty if ``name`` itself is not local to the function."""
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
    """Add to ``bound`` the names stored by statements before ``line``; a loop also binds for its own body."""
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


WEIGHTS = {
    "compare": 3.0,
    "binop": 3.0,
    "constant": 2.5,
    "boolean": 2.0,
    "negate": 2.0,
    "swap": 1.5,
    "call": 2.0,
    "variable": 1.0,
}
"""Relative frequency with which ``pick`` draws each kind."""

Place = tuple[ast.AST, str, int | None]
"""(ancestor, field of the ancestor, index in the field or None) on the way down to a node, outermost first."""


@dataclass(frozen=True)
class Change:
    """Replace ``node`` by ``replacement``; not applied to the tree yet. ``kind``: a key of ``WEIGHTS``."""

    kind: str
    node: ast.expr | ast.stmt
    replacement: ast.expr | ast.stmt
    ancestors: tuple[Place, ...]


def changes(root: ast.AST, module: ast.Module) -> Iterator[Change]:
    """Every change under ``root``. Nodes in f-strings (whose positions Python 3.11 does not give), decorators,
    annotations and docstrings are left alone."""
    siblings = _sibling_functions(module)
    for node, ancestors in _walk(root, ()):
        for kind, replacement in _replacements(node, ancestors, siblings):
            yield Change(kind, node, replacement, ancestors)


def _walk(node: ast.AST, ancestors: tuple[Place, ...]) -> Iterator[tuple[ast.expr | ast.stmt, tuple[Place, ...]]]:
    if isinstance(node, ast.expr | ast.stmt):
        yield node, ancestors
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation", "returns", "type_params") or isinstance(node, ast.JoinedStr):
            continue
        if isinstance(value, ast.AST):
            yield from _walk(value, (*ancestors, (node, name, None)))
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(item, (*ancestors, (node, name, index)))


Found = Iterator[tuple[str, ast.expr | ast.stmt]]


def _replacements(node: ast.expr | ast.stmt, ancestors: tuple[Place, ...], siblings: dict[str, list[str]]) -> Found:
    match node:
        case ast.Compare():
            yield from _compare(node)
        case ast.BinOp() | ast.AugAssign():
            yield from _binop(node)
        case ast.BoolOp(op=op, values=values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.Constant(value=bool() as flag):
            yield "boolean", ast.Constant(not flag)
        case ast.Constant() | ast.UnaryOp(op=ast.USub()):
            if not (ancestors and isinstance(ancestors[-1][0], ast.UnaryOp)):
                yield from _constant(node)
        case ast.Call():
            yield from _swap(node)
            yield from _call(node, siblings)
        case ast.Name(id=name, ctx=ast.Load()):
            if not (isinstance(ancestors[-1][0], ast.Call) and ancestors[-1][1] == "func"):
                yield from (("variable", ast.Name(n, ast.Load())) for n in names_in_scope(name, node, ancestors))
    if ancestors and _is_condition(ancestors[-1]) and isinstance(node, ast.expr):
        yield "negate", _negated(node)


_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    **{k: v[0] for k, v in _COMPARE.items() if len(v) == 1},
}
_BINOP: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_UNORDERED = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)
_TEXT = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
_CALLS = {
    **{a: b for x, y in (("min", "max"), ("any", "all"), ("lower", "upper"), ("startswith", "endswith"),
       ("lstrip", "rstrip"), ("find", "rfind"), ("index", "count"), ("isdigit", "isalpha"), ("islower", "isupper"),
       ("title", "capitalize"), ("ljust", "rjust"), ("keys", "values"), ("union", "intersection"), ("floor", "ceil"),
       ("appendleft", "append"), ("popleft", "pop"), ("add", "discard"), ("sorted", "list"), ("sum", "len"))
       for a, b in ((x, y), (y, x))},
    "strip": "lstrip", "append": "appendleft", "pop": "popleft",
}  # fmt: skip
del _CALLS["append"], _CALLS["pop"], _CALLS["list"], _CALLS["len"]  # one way only: the reverse is seldom legal


def _compare(node: ast.Compare) -> Found:
    for index, op in enumerate(node.ops):
        for other in _COMPARE[type(op)]:
            ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield "compare", ast.Compare(node.left, ops, node.comparators)


def _binop(node: ast.BinOp | ast.AugAssign) -> Found:
    other = _BINOP.get(type(node.op))
    if isinstance(node, ast.AugAssign):
        if other is not None and not _is_text(node.value):
            yield "binop", ast.AugAssign(node.target, other(), node.value)
        return
    if other is not None and not _is_text(node.left) and not _is_text(node.right):
        yield "binop", ast.BinOp(node.left, other(), node.right)
    if not isinstance(node.op, _UNORDERED) and not _is_text(node.left):
        yield "swap", ast.BinOp(node.right, node.op, node.left)


def _is_text(node: ast.expr) -> bool:
    """Return whether a node is a string or a list: they support few operators, so mutants would raise TypeError."""
    return isinstance(node, _TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _constant(node: ast.Constant | ast.UnaryOp) -> Found:
    sign, inner = (-1, node.operand) if isinstance(node, ast.UnaryOp) else (1, node)
    if not isinstance(inner, ast.Constant) or type(inner.value) is not int or abs(inner.value) > 10**6:
        return
    for value in (sign * inner.value + 1, sign * inner.value - 1):
        yield "constant", ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def _swap(node: ast.Call) -> Found:
    for index in range(len(node.args) - 1):
        if any(isinstance(a, ast.Starred) for a in node.args[index : index + 2]):
            continue
        args = [*node.args[:index], node.args[index + 1], node.args[index], *node.args[index + 2 :]]
        yield "swap", ast.Call(node.func, args, node.keywords)


def _call(node: ast.Call, siblings: dict[str, list[str]]) -> Found:
    match node.func:
        case ast.Name(id=name):
            others = [_CALLS[name]] if name in _CALLS else siblings.get(name, [])
            yield from (("call", ast.Call(ast.Name(o, ast.Load()), node.args, node.keywords)) for o in others)
        case ast.Attribute(value=value, attr=name) if name in _CALLS:
            yield "call", ast.Call(ast.Attribute(value, _CALLS[name], ast.Load()), node.args, node.keywords)


def _sibling_functions(module: ast.Module) -> dict[str, list[str]]:
    """Module-level functions -> up to three others with the same number of parameters."""
    shapes: dict[str, tuple[int, int]] = {}
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            shapes[node.name] = (len(node.args.posonlyargs) + len(node.args.args), len(node.args.kwonlyargs))
    return {a: [b for b in shapes if b != a and shapes[a] == shapes[b]][:3] for a in shapes}


def _is_condition(place: Place) -> bool:
    parent, name, _ = place
    return (name == "test" and isinstance(parent, ast.If | ast.While | ast.IfExp)) or name == "ifs"


def _negated(node: ast.expr) -> ast.expr:
    match node:
        case ast.Compare(ops=[op]):
            return ast.Compare(node.left, [_OPPOSITE[type(op)]()], node.comparators)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
    return ast.UnaryOp(ast.Not(), node)
