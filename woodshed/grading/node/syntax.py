"""JavaScript as a syntax tree (tree-sitter): positions in bytes, comments kept, nothing executed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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


_SCOPES = words("program statement_block class_static_block switch_case switch_default")
_FUNCTIONS = words(
    "function_declaration function_expression arrow_function method_definition generator_function "
    "generator_function_declaration"
)


@dataclass(frozen=True, slots=True)
class Place:
    """A node and the place of its parent: ``node.parent`` searches from the root. ``own``: names that the file itself
    declares for it."""

    node: Node
    own: frozenset[str]
    above: Place | None

    @property
    def parent(self) -> Node | None:
        return self.above.node if self.above is not None else None


def with_own_names(root: Node, names: frozenset[str]) -> Iterator[Place]:
    """Yield every node as ``walk`` does, with those of ``names`` that the file itself declares there: parameters, and
    declarations directly in a block around it. What ``var`` declares counts in its own block only."""
    stack = [Place(root, frozenset(), None)]
    while stack:
        place = stack.pop()
        node, own = place.node, place.own
        if node.type in _SCOPES:
            own |= names.intersection(_declared(node.named_children))
        elif node.type in _FUNCTIONS:
            bound = [node.child_by_field_name("parameters"), node.child_by_field_name("parameter")]
            if node.type in ("function_expression", "generator_function"):
                bound.append(node.child_by_field_name("name"))
            own |= names.intersection(_bound(bound))
        elif node.type == "catch_clause":
            own |= names.intersection(_bound([node.child_by_field_name("parameter")]))
        elif node.type == "for_statement":
            own |= names.intersection(_declared(filter(None, [node.child_by_field_name("initializer")])))
        elif node.type == "for_in_statement" and node.child_by_field_name("kind") is not None:
            own |= names.intersection(_bound([node.child_by_field_name("left")]))
        yield place
        # A method's computed name and decorators are read outside of it.
        outside = {"decorator", "computed_property_name"} if node.type == "method_definition" else ()
        for child in reversed(node.children):
            stack.append(Place(child, place.own if child.type in outside else own, place))


def _declared(statements: Iterable[Node]) -> Iterator[str]:
    for statement in statements:
        found: Node | None = statement
        if statement.type == "export_statement":
            found = statement.child_by_field_name("declaration")
        if found is None:
            continue
        if found.type in ("lexical_declaration", "variable_declaration"):
            yield from _bound([child.child_by_field_name("name") for child in found.named_children])
        elif found.type.endswith("_declaration"):  # of a function or a class
            yield from _bound([found.child_by_field_name("name")])


def _bound(patterns: Iterable[Node | None]) -> Iterator[str]:
    """Yield the names that patterns bind."""
    stack = [pattern for pattern in patterns if pattern is not None]
    while stack:
        node = stack.pop()
        if node.type in ("identifier", "shorthand_property_identifier_pattern"):
            yield text(node)
        elif node.type in ("assignment_pattern", "object_assignment_pattern"):
            stack += filter(None, [node.child_by_field_name("left")])
        elif node.type == "pair_pattern":
            stack += filter(None, [node.child_by_field_name("value")])
        elif node.type in ("formal_parameters", "object_pattern", "array_pattern", "rest_pattern"):
            stack += node.named_children


def root_name(node: Node | None) -> str:
    """Return the name ``a`` of ``a``, ``a.b`` and ``a.b[0].c``; empty for what begins with anything but a name."""
    while node is not None and node.type in ("member_expression", "subscript_expression", "parenthesized_expression"):
        inner = node.child_by_field_name("object")
        node = inner if inner is not None else next(iter(node.named_children), None)
    return text(node) if node is not None and node.type == "identifier" else ""


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
