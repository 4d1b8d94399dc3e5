"""One-line mutations of a Python source: list them, draw one.

In real code only the tokens that differ are replaced (``splice.py``), so that it stays as its authors wrote it. In
normalised source (the output of ``ast.unparse``) a whole expression is rendered again.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from woodshed.record.python_source import parse_python

from .delete import find_function
from .kinds import WEIGHTS, Change, changes
from .splice import Text, put, splice


@dataclass(frozen=True)
class Mutation:
    """A changed line. ``before`` and ``after``: the whole line ``line`` (1-based); ``source``: the mutated source."""

    kind: str
    line: int
    before: str
    after: str
    source: str


def normalise(source: str) -> str:
    """The source as ``ast.unparse`` writes it, with a final newline. Raises SyntaxError."""
    return ast.unparse(parse_python(source)) + "\n"


def mutations(source: str, *, function: str | None = None, keep_format: bool = False) -> list[Mutation]:
    """All mutations of ``source``, in source order.

    ``function`` limits them to one function (``name`` or ``Class.name``). The source is normalised first unless
    ``keep_format`` is set. Each mutation changes exactly one line, parses, and differs from every other one. Raises
    SyntaxError if the source does not parse, KeyError if there is no such function.
    """
    text = source if keep_format else normalise(source)
    tree = parse_python(text)
    if function is not None:
        roots: list[ast.AST] = [find_function(tree, function)]
    else:
        roots = list(tree.body)
    lines = text.split("\n")
    seen: set[tuple[int, str]] = set()
    found: list[Mutation] = []
    for root in roots:
        edits = _spliced(root, tree, text) if keep_format else _edits(root, tree, lines)
        for kind, number, after, in_parentheses in edits:
            before = lines[number - 1]
            if in_parentheses:  # they may be redundant around the new expression
                after = normalise(apply_line(text, number, after)).split("\n")[number - 1]
            if after == before or (number, after) in seen:
                continue
            seen.add((number, after))
            found.append(
                Mutation(kind=kind, line=number, before=before, after=after, source=apply_line(text, number, after))
            )
    return sorted(found, key=lambda m: m.line)


def apply_line(source: str, line: int, text: str) -> str:
    """``source`` with the 1-based ``line`` replaced by ``text``. Raises IndexError."""
    lines = source.split("\n")
    if not 1 <= line <= len(lines):
        raise IndexError(f"no line {line}: the source has {len(lines)} lines")
    lines[line - 1] = text
    return "\n".join(lines)


def pick(rng: random.Random, options: Sequence[Mutation]) -> Mutation:
    """Draw a kind by ``WEIGHTS`` among those present, then a mutation of that kind uniformly.

    A uniform draw would give mostly wrong-variable bugs, which are the most numerous. Raises ValueError if empty.
    """
    if not options:
        raise ValueError("no mutation to pick from")
    kinds = sorted({m.kind for m in options})
    kind = rng.choices(kinds, [WEIGHTS[k] for k in kinds])[0]
    return rng.choice([m for m in options if m.kind == kind])


def _spliced(root: ast.AST, module: ast.Module, text: str) -> Iterator[tuple[str, int, str, bool]]:
    """As ``_edits``, for source that keeps its format."""
    whole = Text.of(text)
    for change in changes(root, module):
        if (found := splice(whole, change)) is not None:
            yield change.kind, *found, False


def _edits(root: ast.AST, module: ast.Module, lines: list[str]) -> Iterator[tuple[str, int, str, bool]]:
    """Yield (kind, line number, new line, whether the new text is inside the parentheses of what it replaces)."""
    for change in changes(root, module):
        target, rendered = _render(change)
        number, start, end = target.lineno, target.col_offset, target.end_col_offset
        if target.end_lineno != number or end is None or "\n" in rendered:
            continue
        raw = lines[number - 1].encode()
        after = (raw[:start] + rendered.encode() + raw[end:]).decode()
        bare = isinstance(target, (ast.Name, ast.Constant, ast.stmt))
        yield change.kind, number, after, not bare and raw[start - 1 : start] == b"(" and raw[end : end + 1] == b")"


def _render(change: Change) -> tuple[ast.expr | ast.stmt, str]:
    """The node whose text is replaced, and its new text.

    Inside operator expressions, conditional expressions and comprehensions a change can alter which parentheses are
    needed, so the outermost enclosing one is rendered; everything else is delimited by its surroundings.
    """
    if not change.ancestors or not isinstance(change.ancestors[-1][0], _OPEN):
        return change.node, ast.unparse(change.replacement)
    parent, name, index = change.ancestors[-1]
    top = parent
    for ancestor, _, _ in reversed(change.ancestors):
        if not isinstance(ancestor, _OPEN):
            break
        top = ancestor
    put(parent, name, index, change.replacement)
    try:
        rendered = ast.unparse(top)
    finally:
        put(parent, name, index, change.node)
    assert isinstance(top, ast.expr)
    return top, rendered


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension)
_OPEN = (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, *_COMPREHENSIONS)
