"""Grammars of verbs (``compact``): what ``Verb.read`` reads as arguments that follow the tool's schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import Tool, function_of
from .grammar import ANY, Json, Node, Text, any_of, quoted, seq
from .verbs import FIELD, Verb

_PATTERNS = {
    "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?",
    "boolean": "(true|false)",
}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})


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
    if not fields or not set(verb.required) <= set(fields):
        return None
    if schema.keys() - {"type", "properties", "required", "additionalProperties", "title", "description", "x-compact"}:
        return None
    nodes: list[Node] = [Piece(parts[0])] if parts[0] else []
    for i, (name, literal) in enumerate(zip(fields, parts[2::2], strict=True)):
        value = _value(schema["properties"][name], literal, first=not i and not parts[0])
        if value is None:
            return None
        nodes.append(value)
    return nodes


def _value(schema: Any, literal: str, *, first: bool) -> Node | None:
    """A field and the literal behind it; None where a text cannot say exactly what the property allows.

    What stands ``first`` does not begin as JSON arguments do.
    """
    if not isinstance(schema, Mapping):
        return None
    asked, end = schema.keys() - _ANNOTATIONS, Piece(literal) if literal else None
    texts = schema.get("enum")
    if asked <= {"enum", "type"} and isinstance(texts, list) and all(isinstance(text, str) for text in texts):
        if not all((literal[:1] or "\0") not in text and not (first and text.startswith("{")) for text in texts):
            return None
        return any_of([Piece(text + literal) for text in texts])
    if asked != {"type"}:
        return None
    if (pattern := _PATTERNS.get(schema["type"])) is not None:
        return Text(pattern, end=end)
    if schema["type"] != "string":
        return None
    return Text(f"[^{quoted(literal[0])}]*" if literal else ANY, end=end, unlike=(r"\{" + ANY,) if first else ())
