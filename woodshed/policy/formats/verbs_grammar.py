"""Grammars of verbs (``compact``): what ``Verb.read`` reads as arguments that follow the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.policy.formats.base import Tool, function_of
from woodshed.policy.formats.grammar import ANY, Json, Node, Text, any_of, quoted, seq
from woodshed.policy.formats.verbs import FIELD, Verb
from woodshed.policy.tokenizer import Piece

_PATTERNS = {
    "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?",
    "boolean": "(true|false)",
}
_PLAIN = frozenset({"type", "title", "description", "default", "examples"})


def verb_grammar(verb: Verb, tool: Tool) -> Node:
    """The call by its template where the template can say no more than the schema allows, else with JSON arguments."""
    schema = function_of(tool)["parameters"]
    if not verb.types:
        return Piece(verb.word)
    options: list[Node] = [] if verb.required else [Piece(verb.word)]
    template = _template(verb, schema)
    options.append(seq(f"{verb.word} ", Json(schema)) if template is None else seq(f"{verb.word} ", *template))
    return any_of(options)


def _template(verb: Verb, schema: Mapping[str, Any]) -> list[Node] | None:
    """The parts of the filled-in template; None where JSON has to be written."""
    parts = FIELD.split(verb.template or "")
    fields = parts[1::2]
    if not fields or not set(verb.required) <= set(fields) or not all(_plain(schema, name) for name in fields):
        return None
    if schema.keys() - {"type", "properties", "required", "additionalProperties", "title", "description", "x-compact"}:
        return None
    nodes: list[Node] = [Piece(parts[0])] if parts[0] else []
    for i, (name, literal) in enumerate(zip(fields, parts[2::2], strict=True)):
        pattern = _PATTERNS.get(verb.types[name])
        unlike: tuple[str, ...] = ()
        if pattern is None:
            pattern = f"[^{quoted(literal[0])}]*" if literal else ANY
            if not i and not parts[0]:
                unlike = (r"\{" + ANY,)  # would be read as JSON arguments
        nodes.append(Text(pattern, end=Piece(literal) if literal else None, unlike=unlike))
    return nodes


def _plain(schema: Mapping[str, Any], name: str) -> bool:
    """Whether the property is of a simple type and nothing else is asked of it."""
    of = schema.get("properties", {}).get(name)
    return isinstance(of, Mapping) and of.get("type") in (*_PATTERNS, "string") and not of.keys() - _PLAIN
