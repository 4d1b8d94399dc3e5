"""Tools as Anthropic Messages and OpenAI Responses declare them, in the shape of Chat Completions."""

from __future__ import annotations

from typing import Any

from woodshed.gateway.errors import invalid, shown

_RUN_BY_VENDOR = ("web_search", "web_fetch", "file_search", "code_interpreter", "code_execution", "image_generation")


def run_by_vendor(tool: dict[str, Any]) -> bool:
    """Whether the vendor's server would run this tool. A policy without it answers otherwise, but never wrongly."""
    kind = tool.get("type")
    return isinstance(kind, str) and kind.startswith(_RUN_BY_VENDOR)


def function_tool(tool: dict[str, Any], schema: str, where: str) -> dict[str, Any]:
    """``tool`` has ``name``, ``description`` and its JSON schema under ``schema``.

    Only what a policy reads is kept, in the order in which Chat Completions clients write it: that makes the tokens
    equal. ``x-`` fields, such as ``x-compact``, belong to it; caching hints and ``strict`` do not.
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
