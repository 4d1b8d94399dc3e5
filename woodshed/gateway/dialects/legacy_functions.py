"""``functions`` and ``function_call`` of Chat Completions, which came before tools: the same, one call a reply."""

from __future__ import annotations

from typing import Any

from woodshed.gateway.errors import invalid
from woodshed.gateway.fields import objects
from woodshed.gateway.messages import Message


def as_tools(data: dict[str, Any]) -> dict[str, Any]:
    """The request with ``tools`` and ``tool_choice``. Raises ApiError where it has both kinds."""
    if data.get("tools"):
        raise invalid("functions", "a request has either tools or functions")
    tools = [{"type": "function", "function": each} for each in objects(data["functions"], "functions")]
    choice = data.get("function_call")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return {**data, "tools": tools, "tool_choice": choice}


def as_calls(messages: list[Any]) -> list[Any]:
    """The messages with ``tool_calls`` and results of tools; those without functions stay what they are.

    A result belongs to the call before it. Ids of calls are made from its place in the conversation, so that they are
    the same in every request.
    """
    out: list[Any] = []
    call_id = ""
    for i, message in enumerate(messages):
        if isinstance(message, dict) and message.get("role") == "function":
            content = message.get("content")
            message = {"role": "tool", "content": content, "tool_call_id": call_id or f"call_{i}"}
        elif isinstance(message, dict) and message.get("function_call") and not message.get("tool_calls"):
            call_id = f"call_{i}"
            call = {"id": call_id, "type": "function", "function": message["function_call"]}
            message = {**{k: v for k, v in message.items() if k != "function_call"}, "tool_calls": [call]}
        out.append(message)
    return out


def as_function_call(message: Message) -> Message:
    """A reply for a client that knows functions only. It has one call; of several the first is told."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "function_call": calls[0]["function"]}
