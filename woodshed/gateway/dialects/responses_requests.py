"""OpenAI Responses: requests, converted to the messages of Chat Completions. Nothing is stored between requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from woodshed.gateway.errors import invalid, unsupported
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

from .logprobs import asked_logprobs
from .responses_items import in_namespace, read_items
from .rules import chosen_tools, function_tool, run_by_vendor, schema_of_text, strict_tools

_LOGPROBS = "message.output_text.logprobs"
_STATEFUL = ("previous_response_id", "conversation", "prompt", "background")
_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "tool_choice",
    "tools",
    "top_logprobs",
)
_READ = SAMPLING | {
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "truncation",
    "include",
    "top_logprobs",
    "parallel_tool_calls",
    "logprobs_mode",
    "logprobs",
    "n",
    *_STATEFUL,
}


@dataclass(frozen=True, kw_only=True)
class ResponsesRequest(Request):
    """``echo`` holds the given request fields that a response repeats; ``namespaced`` maps the policy's names of
    functions in a namespace to (namespace, name)."""

    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    echo: dict[str, Any] = field(default_factory=dict)


def parse_responses(body: bytes) -> ResponsesRequest:
    """Parse a request body. Raises ApiError that names the field. ``Request.ignored`` names fields without effect, such
    as ``store``."""
    data = json_object(body)
    for name in _STATEFUL:
        if data.get(name):
            message = "this server stores nothing between requests; send the whole conversation as input"
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
    given_tools, text = _given_tools(data.get("tools")), data.get("text")
    return ResponsesRequest(
        messages=messages,
        tools=[_tool(tool, where) for where, tool in given_tools.functions],
        namespaced=given_tools.namespaced,
        ignored=(*given_tools.left_out, *unknown(data, _READ)),
        call_tools=data.get("tool_choice") != "none",
        rules=ReplyRules(
            **chosen_tools(data.get("tool_choice"), lambda choice: choice.get("name")),
            **schema_of_text(text.get("format") if isinstance(text, dict) else None, "text.format"),
            one_call=data.get("parallel_tool_calls") is not None and not flag(data, "parallel_tool_calls"),
            strict=strict_tools([tool for _, tool in given_tools.functions]),
        ),
        **_logprobs(data),
        max_tokens=integer(data, "max_output_tokens", 1),
        echo={name: data[name] for name in _ECHOED if data.get(name) is not None}
        | ({"text": text} if isinstance(text, dict) and text.get("format") else {}),
        **sampling(data),
    )


def _check(data: dict[str, Any]) -> None:
    """Refuse fields that would make the reply differ from what the client expects."""
    if data.get("truncation") not in (None, "disabled"):
        raise unsupported("truncation", data["truncation"], "disabled")
    refuse(data, {"logprobs": f"is not a field of this API; use include: [{_LOGPROBS!r}]"})
    one_choice(data)


def _logprobs(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Request`` about log-probabilities; ``include`` or ``top_logprobs`` requests them."""
    include = data.get("include")
    if include is not None and not isinstance(include, list):
        raise invalid("include", "must be a list")
    on = _LOGPROBS in (include or ()) or bool(data.get("top_logprobs"))
    return asked_logprobs(data, on, f"include: [{_LOGPROBS!r}]")


@dataclass
class _Given:
    """The tools of a request. ``functions``: (path of its declaration, function under the name that the policy
    uses)."""

    functions: list[tuple[str, Message]] = field(default_factory=list)
    namespaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def _given_tools(value: Any) -> _Given:
    given = _Given()
    for i, tool in enumerate(objects(value, "tools")):
        where = f"tools[{i}]"
        if run_by_vendor(tool):
            given.left_out.append(f"tools.{tool['type']}")
        elif tool.get("type") == "namespace":
            space = string(tool, "name", f"{where}.")
            for j, inner in enumerate(objects(tool.get("tools"), f"{where}.tools")):
                own = string(inner, "name", f"{where}.tools[{j}].")
                name = in_namespace(space, own)
                given.namespaced[name] = (space, own)
                given.functions.append((f"{where}.tools[{j}]", {**inner, "name": name}))
        else:
            given.functions.append((where, tool))
    return given


def _tool(tool: Message, where: str) -> Message:
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", tool.get("type"), "function")
    return function_tool(tool, "parameters", where)
