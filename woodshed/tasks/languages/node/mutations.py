"""One-line mutations of a JavaScript function: one operator, constant, condition, call or name is replaced.

Kinds and weights are those of Python (``languages/python/kinds.py``). Only the text of the changed token or expression
is replaced, so the rest of the line stays as its authors wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from woodshed.grading.node.syntax import parse, text, walk
from woodshed.tasks.languages.python import Mutation

from .functions import JsFunction

if TYPE_CHECKING:
    from tree_sitter import Node

Edit = tuple[str, "Node", str]
"""(kind, node, its new text)."""

_COMPARE = {
    "===": ("!==",),
    "!==": ("===",),
    "==": ("!=",),
    "!=": ("==",),
    "<": ("<=", ">"),
    "<=": ("<",),
    ">": (">=", "<"),
    ">=": (">",),
}
_BINOP = {
    "+": "-",
    "-": "+",
    "*": "/",
    "/": "*",
    "%": "*",
    "&": "|",
    "|": "&",
    "<<": ">>",
    ">>": "<<",
    "+=": "-=",
    "-=": "+=",
    "*=": "/=",
    "/=": "*=",
}
_LOGIC = {"&&": "||", "||": "&&", "??": "&&"}
_PAIRS = (
    "push unshift",
    "pop shift",
    "indexOf lastIndexOf",
    "some every",
    "startsWith endsWith",
    "min max",
    "floor ceil",
    "toLowerCase toUpperCase",
    "trimStart trimEnd",
    "encodeURIComponent encodeURI",
    "decodeURIComponent decodeURI",
    "keys values",
    "parseInt parseFloat",
    "charAt charCodeAt",
    "slice substr",
)
_CALLS = {a: b for pair in _PAIRS for a, b in (pair.split(), pair.split()[::-1])}
_SIMPLE = ("identifier", "member_expression", "subscript_expression", "call_expression")


def mutations(source: bytes, function: JsFunction) -> list[Mutation]:
    """All mutations of the body of ``function``, in source order; each changes one line and still parses."""
    root = parse(source)
    if root is None:
        return []
    lines = source.decode().split("\n")
    found: list[Mutation] = []
    seen: set[bytes] = set()
    start, end = function.body
    parameters = _parameters(root, function)
    for node in walk(root):
        if node.start_byte < start or node.end_byte > end:
            continue
        for kind, place, new in _edits(node, parameters):
            if place.start_point[0] != place.end_point[0] or text(place) == new:
                continue
            changed = source[: place.start_byte] + new.encode() + source[place.end_byte :]
            if changed in seen or parse(changed) is None:
                continue
            seen.add(changed)
            line = place.start_point[0]
            after = changed.decode().split("\n")[line]
            found.append(Mutation(kind=kind, line=line + 1, before=lines[line], after=after, source=changed.decode()))
    return sorted(found, key=lambda m: m.line)


def _edits(node: Node, parameters: frozenset[str]) -> Iterator[Edit]:
    match node.type:
        case "binary_expression" | "augmented_assignment_expression":
            yield from _operator(node)
        case "number":
            yield from _number(node)
        case "true" | "false":
            yield "boolean", node, "false" if node.type == "true" else "true"
        case "unary_expression" if text(node.children[0]) == "!":
            yield "negate", node, text(node.children[1])
        case "if_statement" | "ternary_expression":
            yield from _condition(node)
        case "call_expression":
            yield from _call(node)
        case "identifier" if text(node) in parameters and not _is_bound(node):
            for other in sorted(parameters - {text(node)}):
                yield "variable", node, other


def _operator(node: Node) -> Iterator[Edit]:
    operator = node.child_by_field_name("operator")
    sign = text(operator)
    if operator is None:
        return
    for new in _COMPARE.get(sign, ()):
        yield "compare", operator, new
    if sign in _LOGIC:
        yield "boolean", operator, _LOGIC[sign]
    joined = sign in ("+", "+=") and any("string" in n.type for n in walk(node))
    if sign in _BINOP and not joined:
        yield "binop", operator, _BINOP[sign]


def _number(node: Node) -> Iterator[Edit]:
    if re.fullmatch(r"\d{1,9}", text(node)) and not re.match(r"0\d", text(node)):
        value = int(text(node))
        yield "constant", node, str(value + 1)
        if value > 0:
            yield "constant", node, str(value - 1)


def _condition(node: Node) -> Iterator[Edit]:
    condition = node.child_by_field_name("condition")
    if condition is not None and condition.type == "parenthesized_expression":
        condition = condition.named_children[0]
    if condition is not None and condition.type in _SIMPLE:
        yield "negate", condition, f"!{text(condition)}"


def _call(node: Node) -> Iterator[Edit]:
    function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
    if function is None or arguments is None or arguments.type != "arguments":
        return
    name = function.child_by_field_name("property") if function.type == "member_expression" else function
    if name is not None and text(name) in _CALLS:
        yield "call", name, _CALLS[text(name)]
    given = arguments.named_children
    if len(given) >= 2 and all(g.type in _SIMPLE for g in given[:2]) and text(given[0]) != text(given[1]):
        rest = "".join(f", {text(g)}" for g in given[2:])
        yield "swap", arguments, f"({text(given[1])}, {text(given[0])}{rest})"


def _parameters(root: Node, function: JsFunction) -> frozenset[str]:
    """Names of the function's parameters, without patterns and defaults."""
    for node in walk(root):
        body = node.child_by_field_name("body")
        if body is not None and (body.start_byte, body.end_byte) == function.body:
            given = node.child_by_field_name("parameters")
            return frozenset(text(p) for p in given.named_children if p.type == "identifier") if given else frozenset()
    return frozenset()


def _is_bound(node: Node) -> bool:
    """Return whether the identifier is defined, assigned or called here: replacing it changes more than a value."""
    above = node.parent
    if above is None or above.type in ("formal_parameters", "variable_declarator", "function_declaration"):
        return True
    written = above.type in ("assignment_expression", "augmented_assignment_expression", "update_expression")
    called = above.type == "call_expression" and above.child_by_field_name("function") == node
    return called or (written and above.children[0] == node)
