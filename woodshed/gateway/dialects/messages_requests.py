"""Anthropic Messages: requests, converted to the messages of Chat Completions.

A user message becomes one tool message per ``tool_result`` and one user message per run of text blocks; an assistant
message stays one, with its thinking, text and calls.

Anthropic Messages represents a call's arguments as a JSON object, but a policy may write any text. The conversion is
lossless in both directions.
"""

from __future__ import annotations

import json
from typing import Any

from woodshed.gateway.errors import invalid, shown, unsupported
from woodshed.gateway.fields import (
    SAMPLING,
    flag,
    integer,
    json_object,
    objects,
    one_choice,
    refuse,
    sampling,
    string,
    unknown,
)
from woodshed.gateway.messages import Message
from woodshed.gateway.request import ReplyRules, Request
from woodshed.record.large_json import loads

from .rules import function_tool, run_by_vendor, schema_of_text, strict_tools

_RAW = "_arguments"


def to_input(arguments: str) -> dict[str, Any]:
    """The JSON object in ``arguments``; ``{"_arguments": arguments}`` if they are not a JSON object."""
    try:
        found = loads(arguments)
        json.dumps(found, allow_nan=False)  # NaN and infinity are not JSON, and clients could not parse them
    except (ValueError, RecursionError):
        return {_RAW: arguments}
    if not isinstance(found, dict) or _is_raw(found):
        return {_RAW: arguments}
    return found


def from_input(input: dict[str, Any]) -> str:
    """The inverse of ``to_input``."""
    return input[_RAW] if _is_raw(input) else json.dumps(input, ensure_ascii=False)


def _is_raw(input: dict[str, Any]) -> bool:
    return len(input) == 1 and isinstance(input.get(_RAW), str)


_REFUSED = ("container", "mcp_servers")
"""Fields that change what a reply has to be and that this server does not support."""
_ABSENT = {
    "logprobs": "log-probabilities are in Chat Completions and Responses only",
    "top_logprobs": "log-probabilities are in Chat Completions and Responses only",
    "logprobs_mode": "log-probabilities are in Chat Completions and Responses only",
}
_READ = SAMPLING | {
    "system",
    "max_tokens",
    "stop_sequences",
    "output_config",
    "output_format",
    "n",
    *_REFUSED,
    *_ABSENT,
}


def parse_messages(body: bytes) -> Request:
    """Parse a request body. Raises ApiError that names the field. ``Request.ignored`` names fields without effect, such
    as ``thinking``."""
    data = json_object(body)
    for name in _REFUSED:
        if data.get(name):
            raise invalid(name, "is not supported by this server", "unsupported_value")
    refuse(data, _ABSENT)
    one_choice(data)
    output = data.get("output_config")
    format, format_field = (output.get("format") if isinstance(output, dict) else None), "output_config.format"
    if data.get("output_format"):  # the field's former name
        format, format_field = data["output_format"], "output_format"
    choice = data.get("tool_choice")
    given = objects(data.get("messages"), "messages")
    if not given:
        raise invalid("messages", "must be a non-empty list")
    messages = _system(data.get("system"))
    for i, message in enumerate(given):
        messages += _message(message, f"messages[{i}]")
    if messages[-1]["role"] == "assistant":
        raise invalid(
            f"messages[{len(given) - 1}].role",
            "the last message must be the user's; prefilling the reply is not supported",
            "unsupported_value",
        )
    given_tools = objects(data.get("tools"), "tools")
    left_out = tuple(f"tools.{tool['type']}" for tool in given_tools if run_by_vendor(tool))
    return Request(
        messages=messages,
        tools=[_tool(tool, f"tools[{i}]") for i, tool in enumerate(given_tools) if not run_by_vendor(tool)],
        ignored=(*left_out, *unknown(data, _READ)),
        call_tools=_kind(choice) != "none",
        rules=ReplyRules(
            **_tool_choice(choice),
            **schema_of_text(format, format_field),
            one_call=isinstance(choice, dict) and flag(choice, "disable_parallel_tool_use"),
            strict=strict_tools(given_tools),
        ),
        max_tokens=integer(data, "max_tokens", 1),
        stop=_stop(data.get("stop_sequences")),
        **sampling(data),
    )


def _system(value: Any) -> list[Message]:
    if value is None or value == []:
        return []
    return [{"role": "system", "content": _texts(value, "system")}]


def _message(message: Message, where: str) -> list[Message]:
    role, content = message.get("role"), message.get("content")
    if role == "user":
        if isinstance(content, str):
            return [{"role": "user", "content": content}]
        return _user(objects(content, f"{where}.content"), f"{where}.content")
    if role == "assistant":
        if isinstance(content, str):
            return [{"role": "assistant", "content": content}]
        return [_assistant(objects(content, f"{where}.content"), f"{where}.content")]
    if role == "system":
        return [{"role": "system", "content": _texts(content, f"{where}.content")}]
    raise unsupported(f"{where}.role", role, "user, assistant or system")


def _user(blocks: list[Message], where: str) -> list[Message]:
    if not blocks:
        raise invalid(where, "must be a string or a non-empty list of blocks")
    out: list[Message] = []
    texts: list[str] | None = None
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        kind = block.get("type")
        if kind == "text":
            text = string(block, "text", f"{at}.")
            if texts is None:
                texts = []
                out.append({"role": "user", "content": texts})
            texts.append(text)
        elif kind == "tool_result":
            texts = None
            content = block.get("content")
            text = "" if content is None else _texts(content, f"{at}.content")
            out.append({"role": "tool", "content": text, "tool_call_id": string(block, "tool_use_id", f"{at}.")})
        else:
            raise unsupported(f"{at}.type", kind, "text or tool_result")
    return [{**m, "content": "".join(m["content"])} for m in out]


def _assistant(blocks: list[Message], where: str) -> Message:
    thinking, texts, calls = [], [], []
    for i, block in enumerate(blocks):
        at = f"{where}[{i}]"
        kind = block.get("type")
        if kind == "text":
            texts.append(string(block, "text", f"{at}."))
        elif kind == "thinking":
            thinking.append(string(block, "thinking", f"{at}."))
        elif kind == "tool_use":
            calls.append(_call(block, f"{at}."))
        else:
            raise unsupported(f"{at}.type", kind, "text, thinking or tool_use")
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    return message


def _call(block: Message, where: str) -> Message:
    input = block.get("input")
    if not isinstance(input, dict):
        raise invalid(f"{where}input", f"must be an object, got {shown(input)}")
    function = {"name": string(block, "name", where), "arguments": from_input(input)}
    return {"id": string(block, "id", where), "type": "function", "function": function}


def _texts(value: Any, where: str) -> str:
    """A string, or the concatenated text blocks of a list."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(where, f"must be a string or a list of text blocks, got {shown(value)}")
    texts = []
    for i, block in enumerate(objects(value, where)):
        if block.get("type") != "text":
            raise unsupported(f"{where}[{i}].type", block.get("type"), "text")
        texts.append(string(block, "text", f"{where}[{i}]."))
    return "".join(texts)


def _tool(tool: Message, where: str) -> Message:
    if tool.get("type") not in (None, "custom"):
        raise unsupported(f"{where}.type", tool["type"], "custom")
    if tool.get("input_schema") is None:
        raise invalid(f"{where}.input_schema", "is missing; a tool needs the JSON schema of its input")
    return function_tool(tool, "input_schema", where)


def _kind(choice: Any) -> Any:
    return choice.get("type") if isinstance(choice, dict) else choice


def _tool_choice(value: Any) -> dict[str, Any]:
    kind = _kind(value)
    if kind in (None, "auto", "none"):
        return {}
    if kind == "any":
        return {"must_call": True}
    if kind != "tool":
        raise unsupported("tool_choice.type", kind, "auto, any, tool or none")
    return {"must_call": True, "only": (string(value, "name", "tool_choice."),)}


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise invalid("stop_sequences", "must be a list of non-empty strings")
    return tuple(value)
