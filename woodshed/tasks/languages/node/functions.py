"""Functions of a JavaScript file: find them, name them, delete their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woodshed.grading.node.syntax import parse, text, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_FUNCTIONS = frozenset(
    (
        "function_declaration",
        "generator_function_declaration",
        "function_expression",
        "generator_function",
        "arrow_function",
        "method_definition",
    )
)
_GONE = "throw new Error('not implemented');"


@dataclass(frozen=True)
class JsFunction:
    """Position of a function. ``name``: as the code names it (``parse``, ``Class.method``, ``exports.parse``); lines
    are 1-based, inclusive.

    ``start`` and ``end``: UTF-16 offsets, as V8 counts. ``body``: byte offsets of the body with its braces. ``head``:
    byte offset at which its statement begins. ``statements``: number of statements in the body.
    """

    name: str
    line: int
    end_line: int
    statements: int
    start: int
    end: int
    head: int
    body: tuple[int, int]


def functions_of(source: bytes) -> list[JsFunction]:
    """Functions with a name and a body of statements, in order. Raises SyntaxError if the source does not parse."""
    root = parse(source)
    if root is None:
        raise SyntaxError("no JavaScript that can be read")
    return list(_functions(root, source))


def function_named(source: bytes, name: str) -> JsFunction:
    """Return the function called ``name``. Raises SyntaxError, and KeyError unless there is exactly one."""
    found = [f for f in functions_of(source) if f.name == name]
    if len(found) != 1:
        raise KeyError(f"{len(found)} functions {name!r} in the source")
    return found[0]


def delete_body(source: bytes, function: JsFunction) -> bytes:
    """The source with the statements of ``function`` replaced by one that throws; ``'use strict'`` stays."""
    start, end = function.body
    inner = source[start + 1 : end - 1]
    line = source[source.rfind(b"\n", 0, end) + 1 : end].decode("utf-8", "replace")
    indent = line[: len(line) - len(line.lstrip())]
    unit = "\t" if "\t" in indent or b"\n\t" in inner else "  "
    first = inner.strip().split(b"\n", 1)[0].strip().decode("utf-8", "replace")
    strict = f"{indent}{unit}{first}\n" if first.rstrip(";") in ("'use strict'", '"use strict"') else ""
    body = f"{{\n{strict}{indent}{unit}{_GONE}\n{indent}}}"
    return source[:start] + body.encode() + source[end:]


def signature_of(source: bytes, function: JsFunction) -> str:
    """The comment directly above a function and its head up to the brace, without common indentation."""
    before = source[: function.head].decode("utf-8", "replace")
    lines = before.split("\n")
    lead = lines.pop()
    comment: list[str] = []
    while lines and lines[-1].strip().startswith(("/*", "*", "//")):
        comment.insert(0, lines.pop().strip())
    head = source[function.head : function.body[0]].decode("utf-8", "replace").rstrip()
    starred = [f" {line}" if line.startswith("*") else line for line in comment]
    return "\n".join([*starred, *([lead.strip() + head] if lead.strip() else [head])])


def _functions(root: Node, source: bytes) -> Iterator[JsFunction]:
    for node in walk(root):
        body = node.child_by_field_name("body") if node.type in _FUNCTIONS else None
        name, head = _name(node) if body is not None and body.type == "statement_block" else ("", node)
        if body is None or not name:
            continue
        count = sum(n.type.endswith(("_statement", "_declaration")) for n in walk(body))
        yield JsFunction(
            name=name,
            line=node.start_point[0] + 1,
            end_line=node.end_point[0] + 1,
            statements=count,
            start=_utf16(source, node.start_byte),
            end=_utf16(source, node.end_byte),
            head=head.start_byte,
            body=(body.start_byte, body.end_byte),
        )


def _name(node: Node) -> tuple[str, Node]:
    """Return (name of a function or empty, the node at which its statement begins)."""
    own = node.child_by_field_name("name")
    if node.type == "method_definition":
        accessor = next((c.type for c in node.children if c.type in ("get", "set")), "")
        return _owned(node, f"{accessor} {text(own)}".strip()), node
    if own is not None:
        return text(own), node
    above = node.parent
    if above is None:
        return "", node
    if above.type == "variable_declarator" and above.parent is not None:
        return text(above.child_by_field_name("name")), above.parent
    if above.type == "assignment_expression":
        return text(above.child_by_field_name("left")), above
    if above.type == "pair":
        return _owned(above, text(above.child_by_field_name("key"))), above
    return "", node


def _owned(member: Node, name: str) -> str:
    """``name``, qualified with its class or object."""
    owner = member.parent.parent if member.parent is not None else None
    for field in ("name", "left", "key"):
        found = owner.child_by_field_name(field) if owner is not None else None
        if found is not None:
            return f"{text(found)}.{name}"
    return name


def _utf16(source: bytes, offset: int) -> int:
    return len(source[:offset].decode("utf-8", "replace").encode("utf-16-le")) // 2
