"""Grammars of ``qwen3_coder``'s parameters: raw values that are parsed as values of the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from woodshed.policy.tokenizer import Piece

from .grammar import GrammarRefused, Json, Node, Repeat, Text, any_of, optional, seq
from .reading import resolved, types_of

END = "\n</parameter>\n"
_NAME = re.compile(r"[^<>\n]+")
_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment", "$defs", "definitions"}
)
_OBJECT = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_STRING = _ANNOTATIONS | {"type", "minLength", "maxLength"}
_LENGTH = 4096


def parameters_grammar(name: str, schema: Mapping[str, Any] | None) -> Iterator[Node]:
    """Yield the grammar of each parameter in the schema's order; without a schema, of any parameters.

    Raises GrammarRefused naming the keyword that raw values cannot be made to follow.
    """
    if schema is None:
        yield Repeat(
            seq("<parameter=", Text("[^<>\\n]+", end=Piece(">\n")), Text(end=Piece(END), without=("</parameter>",)))
        )
        return
    if unknown := sorted(k for k in schema.keys() - _OBJECT if not k.startswith("x-")):
        raise GrammarRefused(f"tool {name!r}: {unknown[0]!r} on the parameters as a whole cannot be forced")
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    if missing := [key for key in required if key not in properties]:
        raise GrammarRefused(f"tool {name!r}: required names {missing[0]!r}, which is not a property")
    if not _NAME.fullmatch(name) or not all(map(_NAME.fullmatch, properties)):
        raise GrammarRefused(f"tool {name!r}: names of tools and parameters cannot have '<', '>' or line breaks")
    for key, of in properties.items():
        try:
            values = _values(of, schema)
        except GrammarRefused as refused:
            raise GrammarRefused(f"tool {name!r}, parameter {key!r}: {refused}") from None
        parameter = seq(f"<parameter={key}>\n", any_of(values))
        yield parameter if key in required else optional(parameter)


def _values(schema: Any, root: Mapping[str, Any]) -> list[Node]:
    types = types_of(schema, root)
    if types and "string" not in types:
        shared = {k: root[k] for k in ("$defs", "definitions") if k in root}
        return [seq(Json({**shared, **schema}), END)]
    texts = list(_texts(schema, root, 8))
    if not texts:
        raise GrammarRefused("no text is read as a value that the schema allows")
    return texts


def _texts(schema: Any, root: Mapping[str, Any], depth: int) -> Iterator[Node]:
    """Yield the grammars of a parameter that is read as text whatever it looks like, except for null."""
    schema = resolved(schema, root)
    if schema is True or not depth:
        schema = {}
    if not isinstance(schema, Mapping):
        raise GrammarRefused("its schema is not an object")
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            if schema.keys() - _ANNOTATIONS != {several} or (several != "anyOf" and len(schema[several]) > 1):
                raise GrammarRefused(f"{several!r} cannot be forced on a raw text")
            for option in schema[several]:
                yield from _texts(option, root, depth - 1)
            return
    if "enum" in schema or "const" in schema:
        allowed = schema.get("enum", [schema.get("const")])
        yield from (_literal(value) for value in allowed if value is None or isinstance(value, str))
        return
    kinds = schema.get("type", "string")
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        if kind == "null":
            yield _literal(None)
        elif kind == "string":
            yield _string(schema)


def _literal(value: str | None) -> Node:
    if value is not None and "</parameter>" in value:
        raise GrammarRefused("a value with '</parameter>' cannot be written")
    return Piece(("null" if value is None else value) + END)


def _string(schema: Mapping[str, Any]) -> Node:
    if unknown := sorted(k for k in schema.keys() - _STRING if not k.startswith("x-")):
        raise GrammarRefused(f"{unknown[0]!r} cannot be forced on a raw text")
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if max(least, most or 0) > _LENGTH:
        raise GrammarRefused(f"'minLength' and 'maxLength' above {_LENGTH} cannot be forced on a raw text")
    pattern = f"(?s:.{{{least},{'' if most is None else most}}})"
    return Text(pattern, end=Piece(END), without=("</parameter>",))
