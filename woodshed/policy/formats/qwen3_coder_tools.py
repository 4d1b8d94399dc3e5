"""How ``qwen3_coder`` shows tools in the system turn: schemas as nested tags, then how to call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .base import Tool, schema_of

CALLING = (
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
    "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
    "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n"
    "- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within "
    "<tool_call></tool_call> XML tags\n"
    "- Required parameters MUST be specified\n"
    "- You may provide optional reasoning for your function call in natural language BEFORE the function call, "
    "but NOT after\n"
    "- If there is no function call available, answer the question like normal with your current knowledge and do not "
    "tell the user about function calls\n</IMPORTANT>"
)
"""The text that the published models were trained with."""


def tool_list(tools: Sequence[Tool]) -> str:
    """All schemas. What a schema has besides name, type and description follows as tags of its own."""
    shown = "".join(_function(schema_of(tool)["function"]) for tool in tools)
    return f"\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>{shown}\n</tools>"


def _function(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    fields = properties.items() if isinstance(properties, Mapping) else ()
    out = [f"\n<function>\n<name>{function['name']}</name>", _description(function), "\n<parameters>"]
    for name, field in fields:
        field = field if isinstance(field, Mapping) else {}
        out += [f"\n<parameter>\n<name>{name}</name>", f"\n<type>{field['type']}</type>" if "type" in field else ""]
        out += [_description(field), _rest(field, "name", "type", "description"), "\n</parameter>"]
    out += [_rest(schema, "type", "properties"), "\n</parameters>"]
    return "".join([*out, _rest(function, "type", "name", "description", "parameters"), "\n</function>"])


def _description(schema: Mapping[str, Any]) -> str:
    return f"\n<description>{str(schema['description']).strip()}</description>" if "description" in schema else ""


def _rest(schema: Mapping[str, Any], *handled: str) -> str:
    def value(v: Any) -> str:
        return json.dumps(v, ensure_ascii=False) if isinstance(v, (Mapping, list, tuple)) else str(v)

    return "".join(f"\n<{k}>{value(v)}</{k}>" for k, v in schema.items() if k not in handled)
