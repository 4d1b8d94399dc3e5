"""Verbs of the ``compact`` format: a tool's arguments are written with a template and parsed by its inverse.

``verb_grammar`` is the grammar of what ``Verb.read`` parses as arguments that follow the tool's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import FormatError, Tool, function_of
from .grammar import ANY, Json, Node, Text, any_of, quoted, seq
from .reading import read_json_object

RAW = "_text"
"""Argument that holds the text that could not be parsed, exactly as written."""

FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Verb:
    """How calls of one tool are written. ``template`` None: no ``x-compact``, the arguments are written as JSON."""

    word: str
    name: str
    template: str | None
    types: Mapping[str, str]
    required: tuple[str, ...]

    @property
    def usage(self) -> str:
        """How to write a call, for error messages."""
        form = "{json arguments}" if self.template is None and self.types else self.template
        return f"{self.word} {form}" if form else self.word

    @cached_property
    def _fields(self) -> tuple[str, ...]:
        return tuple(FIELD.findall(self.template or ""))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Inverse of the template. A text field ends before the first character of the literal that follows it; without
        such a literal it takes the rest."""
        parts = FIELD.split(self.template or "")
        pattern = re.escape(parts[0])
        for name, literal in zip(parts[1::2], parts[2::2], strict=True):
            kind = self.types.get(name, "string")
            if kind == "integer":
                value = r"-?\d{1,18}"
            elif kind == "number":
                value = r"-?\d[\d.eE+-]*"
            elif kind == "boolean":
                value = "true|false"
            else:
                value = f"[^{re.escape(literal[0])}]*" if literal else ".*"
            pattern += f"(?P<{name}>{value})" + re.escape(literal)
        return re.compile(pattern, re.DOTALL | re.ASCII)

    def write(self, arguments: Mapping[str, Any]) -> str:
        """Write verb and arguments; as JSON if the template's text would not be read back as the same arguments."""
        if not arguments:
            return self.word
        if self.template is not None and set(arguments) == set(self._fields):
            values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in arguments.items()}
            rest = " " + FIELD.sub(lambda m: values[m[1]], self.template)
            if self.read(rest) == arguments:
                return self.word + rest
        return f"{self.word} {json.dumps(arguments, ensure_ascii=False)}"

    def read(self, rest: str) -> dict[str, Any] | None:
        """Parse the text after the verb as arguments; None if it does not fit."""
        if not rest:
            return None if set(self._fields) & set(self.required) else {}
        if rest.startswith(" {") and (arguments := self._read_json(rest)) is not None:
            return arguments
        if not self.template or not rest.startswith(" "):
            return None
        found = self._pattern.fullmatch(rest, 1)
        if found is None:
            return None
        try:
            return {k: _convert(v, self.types.get(k, "string")) for k, v in found.groupdict().items()}
        except ValueError:
            return None

    def _read_json(self, rest: str) -> dict[str, Any] | None:
        try:
            arguments = read_json_object(rest)
        except ValueError:
            return None
        known = self.types if self.template is not None else arguments
        return arguments if all(k in known for k in arguments) else None


@dataclass(frozen=True)
class Verbs:
    """The verbs of a list of tools, by the word that the policy writes and by the tool's name."""

    by_verb: Mapping[str, Verb]
    by_name: Mapping[str, Verb]


_recent: list[tuple[Sequence[Tool], Verbs]] = []


def verbs_of(tools: Sequence[Tool]) -> Verbs:
    """Return the verbs of ``tools``. The last 8 lists are cached by identity, since a run uses one for all its turns.

    Raises FormatError if two tools have the same verb, or a template names a field that the schema lacks.
    """
    for known, verbs in _recent:
        if known is tools and len(verbs.by_name) == len(tools):
            return verbs
    made = [_verb(tool) for tool in tools]
    by_verb: dict[str, Verb] = {}
    for verb in made:
        if verb.word in by_verb:
            raise FormatError(f"tools {by_verb[verb.word].name!r} and {verb.name!r} both have the verb {verb.word!r}")
        by_verb[verb.word] = verb
    verbs = Verbs(by_verb, {v.name: v for v in made})
    _recent.insert(0, (tools, verbs))
    del _recent[8:]
    return verbs


def _verb(tool: Tool) -> Verb:
    function = function_of(tool)
    name = function["name"]
    parameters = function.get("parameters") or {}
    types = {k: _type_of(v) for k, v in (parameters.get("properties") or {}).items()}
    compact = tool.get("x-compact") or function.get("x-compact") or parameters.get("x-compact")
    required = tuple(parameters.get("required") or ())
    if compact is None:
        return Verb(name, name, None if types else "", types, required)
    word, template = compact.get("verb") or name, compact.get("template") or ""
    fields = FIELD.findall(template)
    if not isinstance(word, str) or word.split() != [word]:
        raise FormatError(f"tool {name!r}: x-compact verb {word!r} must be one word")
    if unknown := [f for f in fields if f not in types or fields.count(f) > 1]:
        raise FormatError(f"tool {name!r}: x-compact template names {unknown}, which is not a parameter or named twice")
    return Verb(word, name, template, types, required)


def _type_of(schema: Any) -> str:
    """JSON type of a property, looking through ``anyOf`` with null (how optional fields are written)."""
    if not isinstance(schema, Mapping):
        return "string"
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind
    options = kind if isinstance(kind, list) else [_type_of(s) for s in schema.get("anyOf") or ()]
    kinds = [o for o in options if o != "null"]
    return kinds[0] if len(kinds) == 1 else "string"


def _convert(text: str, kind: str) -> Any:
    if kind in ("integer", "number", "boolean", "array", "object"):
        return int(text) if kind == "integer" else json.loads(text)
    return text


_PATTERNS = {
    "integer": "-?(0|[1-9][0-9]{0,17})",
    "number": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?",
    "boolean": "(true|false)",
}
_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})


def verb_grammar(verb: Verb, tool: Tool) -> Node:
    """Return the grammar of a call: by its template if that allows exactly the schema's values, else with JSON."""
    schema = function_of(tool)["parameters"]
    if not verb.types:
        return Piece(verb.word)
    options: list[Node] = [] if verb.required else [Piece(verb.word)]
    template = _template(verb, schema)
    options.append(seq(f"{verb.word} ", Json(schema)) if template is None else seq(f"{verb.word} ", *template))
    return any_of(options)


def _template(verb: Verb, schema: Mapping[str, Any]) -> list[Node] | None:
    """Return the grammar's parts for the template; None if the arguments must be JSON."""
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
    """Return the grammar of a field and the literal after it, None if text cannot express exactly the property's
    values.

    A field that is ``first`` must not begin like JSON arguments.
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
