"""OpenAI Chat Completions: requests.

The deprecated ``functions`` and ``function_call`` are converted to tools, with one call per reply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from woodshed.gateway.errors import invalid
from woodshed.gateway.fields import SAMPLING, flag, integer, json_object, objects, sampling, unknown
from woodshed.gateway.key_limits import MAX_CONCURRENT_REQUESTS
from woodshed.gateway.messages import Message
from woodshed.gateway.request import ReplyRules, Request

from .logprobs import asked_logprobs
from .rules import chosen_tools, schema_of_text, strict_tools, without_strict


def as_tools(data: dict[str, Any]) -> dict[str, Any]:
    """Convert ``functions`` to ``tools`` and ``tool_choice``. Raises ApiError if the request has both."""
    if data.get("tools"):
        raise invalid("functions", "a request has either tools or functions")
    tools = [{"type": "function", "function": each} for each in objects(data["functions"], "functions")]
    choice = data.get("function_call")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return {**data, "tools": tools, "tool_choice": choice}


def as_calls(messages: list[Any]) -> list[Any]:
    """Convert messages with function calls and results to ``tool_calls`` and tool messages; others stay unchanged.

    A result belongs to the call before it. The id of a call is made from its index in the conversation, so that it is
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
    """Convert a reply for a client that uses ``functions``: its first call becomes ``function_call``."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "function_call": calls[0]["function"]}


_READ = SAMPLING | {
    "n",
    "top_logprobs",
    "logprobs",
    "logprobs_mode",
    "stream_options",
    "max_completion_tokens",
    "max_tokens",
    "stop",
    "response_format",
    "parallel_tool_calls",
    "functions",
    "function_call",
}


@dataclass(frozen=True, kw_only=True)
class ChatRequest(Request):
    """``include_usage``: a streamed reply ends with its usage. ``legacy``: the client uses ``functions``."""

    include_usage: bool = False
    legacy: bool = False


def parse_chat(body: bytes) -> ChatRequest:
    """Parse a request body. Raises ApiError that names the field. ``Request.ignored`` names fields without effect."""
    data = json_object(body)
    messages = data.get("messages")
    if not isinstance(messages, list) or not messages:
        raise invalid("messages", "must be a non-empty list")
    legacy = data.get("functions") is not None
    if legacy:
        data = as_tools(data)
    messages = as_calls(messages)
    choices = integer(data, "n", 1) or 1
    if choices > MAX_CONCURRENT_REQUESTS:
        raise invalid("n", f"at most {MAX_CONCURRENT_REQUESTS} choices are possible per request", "unsupported_value")
    options = data.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise invalid("stream_options", "must be an object")
    tools = _tools(data.get("tools"))
    limit = integer(data, "max_completion_tokens", 1)
    return ChatRequest(
        messages=messages,
        tools=without_strict(tools),
        call_tools=data.get("tool_choice") != "none",
        rules=ReplyRules(
            **chosen_tools(data.get("tool_choice"), _named),
            **schema_of_text(_response_format(data.get("response_format")), "response_format", ".json_schema"),
            one_call=data.get("parallel_tool_calls") is not None and not flag(data, "parallel_tool_calls"),
            strict=strict_tools(tools),
        ),
        legacy=legacy,
        ignored=unknown(data, _READ),
        include_usage=bool(options and options.get("include_usage")),
        choices=choices,
        **asked_logprobs(data, flag(data, "logprobs"), "logprobs: true"),
        max_tokens=integer(data, "max_tokens", 1) if limit is None else limit,
        stop=_stop(data.get("stop")),
        **sampling(data),
    )


def _tools(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid("tools", "must be a list")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid(f"tools[{i}]", "must be {type: 'function', function: {name, description, parameters}}")
    return value


def _named(choice: dict[str, Any]) -> Any:
    """The function's name in a ``tool_choice`` of one function."""
    function = choice.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _response_format(value: Any) -> Any:
    """Convert ``response_format`` to the form of the Responses API: the members of ``json_schema`` beside the type."""
    if not isinstance(value, dict) or not isinstance(value.get("json_schema"), dict):
        return value
    return {**value["json_schema"], "type": value.get("type")}


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or len(values) > 4 or not all(isinstance(v, str) and v for v in values):
        raise invalid("stop", "must be a non-empty string or a list of at most four")
    return tuple(values)
