"""JavaScript as a syntax tree (tree-sitter): positions in bytes, comments kept, nothing executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from woodshed.record.task import TaskError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

SUFFIXES = (".js", ".cjs", ".mjs")
_LARGEST = 512 << 10


@cache
def _parser() -> Parser:
    try:
        import tree_sitter_javascript
        from tree_sitter import Language, Parser
    except ImportError:
        raise TaskError("Node projects need the packages of the extra `node`: pip install 'woodshed[node]'") from None
    return Parser(Language(tree_sitter_javascript.language()))


def words(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


def parse(source: bytes) -> Node | None:
    """Return the root of the tree; None if the source is not JavaScript or is larger than 512 KiB."""
    if len(source) > _LARGEST:
        return None
    root = _parser().parse(source).root_node
    return None if root.has_error else root


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all below it, in source order. Not recursive: hostile code nests deeper than any stack."""
    stack = [node]
    while stack:
        found = stack.pop()
        yield found
        stack += reversed(found.children)


def text(node: Node | None) -> str:
    """Return the source text of a node, empty for None."""
    return node.text.decode("utf-8", "replace") if node is not None and node.text is not None else ""


def string_value(node: Node | None) -> str | None:
    """Return the text of a string literal without escapes; None for anything else."""
    if node is None or node.type != "string" or any(c.type == "escape_sequence" for c in node.children):
        return None
    return text(node)[1:-1]


def rewrite(node: Node, replace: Callable[[Node], str | None]) -> str:
    """Return the source text of ``node``, with nodes replaced by the text that ``replace`` returns; outermost first."""
    new = replace(node)
    if new is not None:
        return new
    source = node.text or b""
    parts: list[str] = []
    at = node.start_byte
    for child in node.children:
        parts.append(source[at - node.start_byte : child.start_byte - node.start_byte].decode("utf-8", "replace"))
        parts.append(rewrite(child, replace))
        at = child.end_byte
    parts.append(source[at - node.start_byte :].decode("utf-8", "replace"))
    return "".join(parts)
