"""Values of parameters as plain text and back, by the types that a tool's schema allows (``qwen3_coder``).

Text is written as it is. So a parameter that may be text, or has no type, is read as text whatever it looks like; only
where null is allowed as well, ``null`` and ``None`` mean it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Tool
from .reading import read_json_at, skip_blanks

Types = frozenset[str]
"""Names of JSON types; empty: nothing is known."""

_UNKNOWN: Types = frozenset()
_NUMBERS: Types = frozenset({"integer", "number"})
_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def write_value(value: Any) -> str:
    """Objects and arrays as JSON, the rest as Python prints it (``True``, ``None``): so do Qwen3-Coder's templates."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)


def read_value(text: str, types: Types) -> Any:
    """The value of one of ``types`` that ``text`` says; the text itself where it says none."""
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
    """Parameter -> types of the tool called ``name``; empty for a tool that is not there."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, Mapping) and function.get("name") == name:
            schema = function.get("parameters")
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            if isinstance(schema, Mapping) and isinstance(properties, Mapping):
                return {k: types_of(v, schema) for k, v in properties.items()}
    return {}


def types_of(schema: Any, root: Mapping[str, Any]) -> Types:
    """Types that a schema within ``root`` allows."""
    return _types(schema, root, 8)


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """What a schema that is a reference into ``root`` refers to; any other schema itself."""
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
