"""Helpers to parse completions: stop tokens, thinking, JSON as a policy writes it, raw values of parameters.

Raw values (``qwen3_coder``) are read by the types that the tool's schema allows. Text is not escaped, so a parameter
that may be text, or has no type, is read as text whatever it looks like. Only if null is also allowed, ``null`` and
``None`` mean null.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Tool, ToolCall

THINK, THINK_END = "<think>", "</think>"

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def new_call_id() -> str:
    """Return a random id of a call, unique within a conversation."""
    return "call_" + os.urandom(9).hex()


def without_stop(text: str, stop_tokens: Sequence[str]) -> str:
    """Remove the stop token that may end the text."""
    return text.removesuffix(next((t for t in stop_tokens if text.endswith(t)), ""))


def split_thinking(text: str) -> tuple[str | None, str]:
    """Split off the contents of a leading ``<think>`` block (None if there is none); an unclosed block is all
    thinking."""
    stripped = text.lstrip()
    if not stripped.startswith(THINK):
        return None, text
    thinking, _, rest = stripped[len(THINK) :].partition(THINK_END)
    return thinking, rest


def skip_blanks(text: str, start: int) -> int:
    """Return the index of the first character from ``start`` on that is not JSON whitespace."""
    found = _BLANKS.match(text, start)
    return found.end() if found else start


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON value that begins at ``start``, after blanks; return it and the index after it.

    Raises ValueError on bad syntax, on nesting too deep for the decoder, and on half of a surrogate pair, which a reply
    in UTF-8 cannot contain.
    """
    try:
        data, end = _DECODER.raw_decode(text, skip_blanks(text, start))
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return data, end


def read_json_object(text: str) -> dict[str, Any]:
    """Read a text that is one JSON object. Raises ValueError as ``read_json_at`` does, and for any other value."""
    data, end = read_json_at(text, 0)
    if skip_blanks(text, end) < len(text):
        raise ValueError(f"text after the object, at character {end}")
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def call_of_json(data: Any, field: str, other: str | None = None) -> tuple[ToolCall | None, str | None]:
    """Read ``{"name": ..., FIELD: ...}`` as a call; return it and what is wrong. ``other`` may replace ``field``.

    Arguments of the wrong type still make a call; an object without a name makes none.
    """
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None, f'tool call must be a JSON object with "name" and "{field}"'
    arguments = data.get(field, data.get(other, {}) if other else {})
    if isinstance(arguments, str):
        # Some models write the arguments as a string that holds JSON.
        return ToolCall(new_call_id(), data["name"], arguments), None
    problem = None if isinstance(arguments, dict) else "the arguments of a tool call must be a JSON object"
    return ToolCall(new_call_id(), data["name"], json.dumps(arguments, ensure_ascii=False)), problem


Types = frozenset[str]
"""Names of JSON types; empty if nothing is known."""

_UNKNOWN: Types = frozenset()
_NUMBERS: Types = frozenset({"integer", "number"})
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def write_value(value: Any) -> str:
    """Write objects and arrays as JSON, the rest as Python prints it (``True``, ``None``), as Qwen3-Coder's templates
    do."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def read_value(text: str, types: Types) -> Any:
    """Parse ``text`` as a value of one of ``types``; return the text itself if it is no such value."""
    bare = text.strip()
    if "null" in types and bare in ("null", "None"):
        return None
    if not types or "string" in types:
        return text
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower() == "true"
    try:
        value, end = read_json_at(bare, 0)
    except ValueError:
        return text
    if skip_blanks(bare, end) < len(bare):
        return text
    kind = _type_name(value)
    return value if kind in types or (kind in _NUMBERS and types & _NUMBERS) else text


def parameter_types(tools: Sequence[Tool], name: str) -> dict[str, Types]:
    """Return the types of each parameter of the tool called ``name``; empty for a tool that is not in ``tools``."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            if isinstance(schema, Mapping) and isinstance(properties, Mapping):
                return {k: types_of(v, schema) for k, v in properties.items()}
    return {}


def types_of(schema: Any, root: Mapping[str, Any]) -> Types:
    """Return the types that ``schema``, a part of the schema ``root``, allows."""
    return _types(schema, root, 8)


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Follow a schema that is a reference into ``root``; return any other schema unchanged."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target: Any = root
        for step in reference[2:].split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        schema = target
    return None


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> Types:
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or not depth:
        return _UNKNOWN
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(k for k in kind if isinstance(k, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(map(_type_name, values))
    options = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
    known = [_types(option, root, depth - 1) for option in options] if isinstance(options, list) else []
    return frozenset().union(*known) if known and all(known) else _UNKNOWN


def _type_name(value: Any) -> str:
    return _NAMES.get(type(value), "null")
