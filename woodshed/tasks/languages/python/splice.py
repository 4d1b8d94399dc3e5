"""Apply a change of a syntax tree to the source text by replacing only the tokens that differ; merge changed texts.

Quotes, spacing, comments and parentheses stay as their authors wrote them, so that the format of a mutant does not show
where it is. Positions in the tree are bytes of UTF-8. If the plain edit would be parsed differently from the changed
tree, parentheses are added; the edited text is parsed and compared with the changed tree each time.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from woodshed.record.python_source import parse_python

from .kinds import Change

Edit = tuple[int, int, bytes]
"""(first byte, byte after the last, replacement)."""

_SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.And: "and", ast.Or: "or", ast.MatMult: "@",
}  # fmt: skip
_OPERATORS = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare)


@dataclass(frozen=True)
class Text:
    """Source text as bytes, with the offset of each line."""

    data: bytes
    starts: tuple[int, ...]

    @staticmethod
    def of(source: str) -> Text:
        starts = [0]
        for line in source.split("\n"):
            starts.append(starts[-1] + len(line.encode()) + 1)
        return Text(source.encode(), tuple(starts))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def line(self, place: int) -> int:
        """1-based number of the line that holds the byte at ``place``."""
        low, high = 0, len(self.starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= place else (low, middle)
        return low + 1


def splice(text: Text, change: Change) -> tuple[int, str] | None:
    """Return (line number, that line after the change); None if the change does not stay within tokens of one line."""
    for edits in _candidates(text, change):
        lines = {text.line(place) for start, end, _ in edits for place in (start, end)}
        if len(lines) != 1 or any(b"\n" in new for _, _, new in edits):
            continue
        if _means(text, change, edits):
            (number,) = lines
            first, last = text.starts[number - 1], text.starts[number] - 1
            return number, _applied(text.data, first, last, edits).decode()
    return None


def _candidates(text: Text, change: Change) -> Iterator[list[Edit]]:
    """Alternative edits for one change, first without new parentheses."""
    edits = _edits(text, change)
    if edits is None:
        return
    yield edits
    start, end = text.span(change.node)
    yield [(start, start, b"("), *edits, (end, end, b")")]
    operands = [c for c in ast.iter_child_nodes(change.node) if isinstance(c, _OPERATORS)]
    around: list[Edit] = []
    for operand in operands:
        first, last = text.span(operand)
        around += [(first, first, b"("), (last, last, b")")]
    if around:
        yield sorted([*edits, *around])
        yield [(start, start, b"("), *sorted([*edits, *around]), (end, end, b")")]


def _edits(text: Text, change: Change) -> list[Edit] | None:
    node, new = change.node, change.replacement
    match node, new:
        case ast.Compare(), ast.Compare():
            operands = [node.left, *node.comparators]
            changed = [i for i, (a, b) in enumerate(zip(node.ops, new.ops)) if type(a) is not type(b)]
            return [
                e
                for i in changed
                for e in _operator(text=text, left=operands[i], old=node.ops[i], new=new.ops[i], right=operands[i + 1])
            ]
        case ast.BinOp(), ast.BinOp() if new.left is node.left:
            return _operator(text=text, left=node.left, old=node.op, new=new.op, right=node.right)
        case ast.BinOp(), ast.BinOp():
            return _exchange(text, node.left, node.right)
        case ast.AugAssign(), ast.AugAssign():
            return _operator(text=text, left=node.target, old=node.op, new=new.op, right=node.value)
        case ast.BoolOp(), ast.BoolOp():
            pairs = zip(node.values, node.values[1:])
            return [e for a, b in pairs for e in _operator(text=text, left=a, old=node.op, new=new.op, right=b)]
        case ast.Call(), ast.Call() if new.func is node.func:
            index = next(i for i, (a, b) in enumerate(zip(node.args, new.args)) if a is not b)
            return _exchange(text, node.args[index], node.args[index + 1])
        case ast.Call(func=ast.Name() | ast.Attribute() as old), ast.Call(func=ast.Name() | ast.Attribute() as other):
            was, now = (f.id if isinstance(f, ast.Name) else f.attr for f in (old, other))
            end = text.span(old)[1]
            return [(end - len(was.encode()), end, now.encode())]
        case ast.UnaryOp(op=ast.Not(), operand=operand), _ if new is operand:
            return [(text.span(node)[0], text.span(operand)[0], b"")]
        case _, ast.UnaryOp(op=ast.Not(), operand=operand) if operand is node:
            start = text.span(node)[0]
            return [(start, start, b"not ")]
    return [(*text.span(node), ast.unparse(new).encode())]


def _operator(text: Text, left: ast.expr, old: ast.AST, new: ast.AST, right: ast.expr) -> list[Edit]:
    """The edit of the operator between two operands, which may be in parentheses."""
    start, end = text.span(left)[1], text.span(right)[0]
    sign = rb"\s+".join(re.escape(word).encode() for word in _SIGNS[type(old)].split())
    found = re.search(sign, re.sub(rb"#[^\n]*", lambda m: b" " * len(m[0]), text.data[start:end]))
    return [(start + found.start(), start + found.end(), _SIGNS[type(new)].encode())] if found else []


def _exchange(text: Text, one: ast.expr, other: ast.expr) -> list[Edit]:
    first, second = text.span(one), text.span(other)
    return [(*first, text.data[slice(*second)]), (*second, text.data[slice(*first)])]


def _means(text: Text, change: Change, edits: list[Edit]) -> bool:
    """Return whether the edited text of the whole expression or statement parses to the changed tree."""
    top: ast.expr | ast.stmt = change.node
    if not isinstance(top, ast.stmt):
        for ancestor, _, _ in reversed(change.ancestors):
            if isinstance(ancestor, ast.stmt):
                break
            top = ancestor if isinstance(ancestor, ast.expr) else top
    written = _applied(text.data, *text.span(top), edits).decode()
    try:
        read = (
            parse_python(written).body[0]
            if isinstance(top, ast.stmt)
            else parse_python(f"({written}\n)", mode="eval").body
        )
    except (SyntaxError, ValueError, IndexError):
        return False
    return ast.dump(read) == _changed_dump(top, change)


def _changed_dump(top: ast.expr | ast.stmt, change: Change) -> str:
    if top is change.node:
        return ast.dump(change.replacement)
    parent, name, index = change.ancestors[-1]
    put(parent, name, index, change.replacement)
    try:
        return ast.dump(top)
    finally:
        put(parent, name, index, change.node)


def put(parent: ast.AST, name: str, index: int | None, node: ast.AST) -> None:
    """Set one child of a node."""
    if index is None:
        setattr(parent, name, node)
    else:
        getattr(parent, name)[index] = node


def _applied(data: bytes, start: int, end: int, edits: list[Edit]) -> bytes:
    """Bytes ``start`` to ``end`` with the edits inside them applied."""
    parts, at = [], start
    for first, last, new in sorted(edits, key=lambda e: (e[0], e[1])):
        if start <= first and last <= end:
            parts += [data[at:first], new]
            at = last
    return b"".join([*parts, data[at:end]])


def merge(before: str, changed: Sequence[str]) -> str | None:
    """``before`` with the changes of all texts in ``changed``; None if two of them touch the same or adjacent lines.

    The lines from the first to the last difference of a text count as one edit.
    """
    lines = before.split("\n")
    edits = sorted(_edit(lines, text.split("\n")) for text in changed)
    if any(second[0] <= first[1] for first, second in pairwise(edits)):
        return None
    for start, end, new in reversed(edits):
        lines[start:end] = new
    return "\n".join(lines)


def _edit(before: list[str], after: list[str]) -> tuple[int, int, list[str]]:
    """Return (first line, line after the last, replacement), 0-based."""
    most = min(len(before), len(after))
    head = next((i for i in range(most) if before[i] != after[i]), most)
    tail = next((i for i in range(most - head) if before[-1 - i] != after[-1 - i]), most - head)
    return head, len(before) - tail, after[head : len(after) - tail]
