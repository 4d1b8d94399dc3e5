"""Request fields that several dialects share: choice of tools, formats of text, strict tools, declarations of tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from woodshed.gateway.errors import invalid, shown, unsupported

_CHOICES = "auto, none, required, a function or allowed_tools"


def chosen_tools(value: Any, name_of: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """``ReplyRules`` fields for OpenAI's ``tool_choice``; ``name_of`` returns the name in a choice of one function."""
    if value in (None, "auto", "none"):
        return {}
    if value == "required":
        return {"must_call": True}
    kind = value.get("type") if isinstance(value, dict) else value
    if kind == "function":
        return {"must_call": True, "only": (_name(name_of(value), "tool_choice"),)}
    if kind != "allowed_tools":
        raise unsupported("tool_choice", value if isinstance(value, str) else kind, _CHOICES)
    allowed = value.get("allowed_tools", value)  # in Responses, the members are beside the type
    mode = allowed.get("mode", "auto") if isinstance(allowed, dict) else None
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required"):
        raise unsupported("tool_choice.mode", mode, "auto or required")
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        raise invalid("tool_choice.tools", "must be a non-empty list of functions")
    names = tuple(_name(name_of(tool), f"tool_choice.tools[{i}]") for i, tool in enumerate(tools))
    return {"must_call": mode == "required", "only": names}


def schema_of_text(format: Any, where: str, inside: str = "") -> dict[str, Any]:
    """``ReplyRules`` fields for a text format in field ``where``; ``inside`` is the path of the schema below it."""
    kind = format.get("type") if isinstance(format, dict) else format
    if kind in (None, "text"):
        return {}
    if kind == "json_object":
        return {"schema": {"type": "object"}, "schema_field": where}
    if kind != "json_schema":
        raise unsupported(f"{where}.type", kind, "text, json_object or json_schema")
    schema = format.get("schema")
    if not isinstance(schema, dict):
        raise invalid(f"{where}{inside}.schema", f"must be a JSON schema, got {schema!r:.60}")
    return {"schema": schema, "schema_field": f"{where}{inside}.schema"}


def strict_tools(tools: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Names of the tools that are declared strict. Raises ApiError if ``strict`` is not a boolean."""
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool)
        strict = function.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise invalid(f"tools[{i}].strict", "must be true or false")
        if strict and isinstance(function.get("name"), str):
            names.append(function["name"])
    return tuple(names)


def without_strict(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools without the member ``strict``, which no dialect shows to the policy."""
    if not any("strict" in tool["function"] for tool in tools):
        return tools
    return [
        {**tool, "function": {name: value for name, value in tool["function"].items() if name != "strict"}}
        for tool in tools
    ]


def _name(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(where, f"must name a function, got {value!r:.60}")
    return value


_RUN_BY_VENDOR = ("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation")


def run_by_vendor(tool: dict[str, Any]) -> bool:
    """Return True for a tool that the vendor's server would run. Such tools are left out: replies are valid without."""
    kind = tool.get("type")
    return isinstance(kind, str) and kind.startswith(_RUN_BY_VENDOR)


def function_tool(tool: dict[str, Any], schema: str, where: str) -> dict[str, Any]:
    """Convert a tool to the form of Chat Completions; ``schema`` is the name of the field with its JSON schema.

    Only fields that the policy reads are kept, in the order in which Chat Completions clients write them, so that the
    tokens are equal. This includes ``x-`` fields, such as ``x-compact``, but not caching hints and ``strict``.
    """
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", f"must be a non-empty string, got {shown(name)}")
    if description is not None and not isinstance(description, str):
        raise invalid(f"{where}.description", f"must be a string, got {shown(description)}")
    parameters = tool.get(schema)
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{where}.{schema}", f"must be a JSON schema, got {shown(parameters)}")
    function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    function = {k: v for k, v in function.items() if v is not None}
    function |= {k: v for k, v in tool.items() if k.startswith("x-")}
    return {"type": "function", "function": function}
