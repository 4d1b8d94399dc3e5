"""OpenAI Responses: requests, as the conversation that Chat Completions would have. Nothing is kept between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import invalid, unsupported
from ..fields import SAMPLING, integer, json_object, objects, sampling, string, unknown
from ..messages import Message
from ..request import Request
from .responses_items import in_namespace, read_items
from .tools import function_tool, run_by_vendor

_STATEFUL = ("previous_response_id", "conversation", "prompt", "background")
_ECHOED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "tool_choice", "tools")
_READ = SAMPLING | {
    "input", "instructions", "max_output_tokens", "text", "truncation", "include", "top_logprobs", *_STATEFUL,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ResponsesRequest(Request):
    """``echo`` holds the fields of the request that a response repeats, as far as they were given; ``namespaced`` what
    the policy's names of functions in a namespace stand for: (namespace, name)."""

    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    echo: dict[str, Any] = field(default_factory=dict)


def parse_responses(body: bytes) -> ResponsesRequest:
    """Raises ApiError that names the field. Fields that change nothing, such as ``store``, are told in
    ``Request.ignored``."""
    data = json_object(body)
    for name in _STATEFUL:
        if data.get(name):
            message = "this server keeps nothing between requests; send the whole conversation as input"
            raise invalid(name, message, "unsupported_value")
    _check(data)
    given = data.get("input")
    if not given or not isinstance(given, (str, list)):
        raise invalid("input", "must be a non-empty string or list of items")
    messages: list[Message] = []
    if data.get("instructions") is not None:
        messages.append({"role": "system", "content": string(data, "instructions", "")})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        messages += read_items(objects(given, "input"))
    tools, namespaced, left_out = _tools(data.get("tools"))
    return ResponsesRequest(
        messages=messages,
        tools=tools,
        namespaced=namespaced,
        ignored=(*left_out, *unknown(data, _READ)),
        call_tools=_tool_choice(data.get("tool_choice")),
        max_tokens=integer(data, "max_output_tokens", 1),
        echo={name: data[name] for name in _ECHOED if data.get(name) is not None},
        **sampling(data),
    )


def _check(data: dict[str, Any]) -> None:
    """Refuse what would make a reply another one than the client expects."""
    text = data.get("text")
    format = text.get("format") if isinstance(text, dict) else None
    kind = format.get("type") if isinstance(format, dict) else format
    if kind not in (None, "text"):
        raise unsupported("text.format.type", kind, "text")
    if data.get("truncation") not in (None, "disabled"):
        raise unsupported("truncation", data["truncation"], "disabled")
    include = data.get("include")
    if include is not None and not isinstance(include, list):
        raise invalid("include", "must be a list")
    if data.get("top_logprobs") or "message.output_text.logprobs" in (include or ()):
        name = "top_logprobs" if data.get("top_logprobs") else "include"
        raise invalid(name, "log-probabilities are in Chat Completions only", "unsupported_value")


def _tools(value: Any) -> tuple[list[Message], dict[str, tuple[str, str]], list[str]]:
    """(functions, what the names of those in a namespace stand for, tools that are left out)."""
    functions: list[Message] = []
    namespaced: dict[str, tuple[str, str]] = {}
    left_out: list[str] = []
    for i, tool in enumerate(objects(value, "tools")):
        where = f"tools[{i}]"
        if run_by_vendor(tool):
            left_out.append(f"tools.{tool['type']}")
        elif tool.get("type") == "namespace":
            space = string(tool, "name", f"{where}.")
            for j, inner in enumerate(objects(tool.get("tools"), f"{where}.tools")):
                function = _tool(inner, f"{where}.tools[{j}]")
                name = in_namespace(space, function["function"]["name"])
                namespaced[name] = (space, function["function"]["name"])
                functions.append({**function, "function": {**function["function"], "name": name}})
        else:
            functions.append(_tool(tool, where))
    return functions, namespaced, left_out


def _tool(tool: Message, where: str) -> Message:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", tool.get("type"), "function")
    return function_tool(tool, "parameters", where)


def _tool_choice(value: Any) -> bool:
    if value is None or value in ("auto", "none"):
        return value != "none"
    raise unsupported("tool_choice", value, "auto or none")
