"""Chat messages as clients send them: normalisation for the chat format, and comparison across requests.

Clients do not echo an assistant message byte for byte: null fields come and go, content becomes a list of parts,
arguments are serialised again. ``same_message`` decides whether two messages mean the same, so that the sampled tokens
of the first can represent the second.
"""

from __future__ import annotations

import json
import re
from typing import Any

from woodshed.record.large_json import loads

from .errors import invalid, shown

Message = dict[str, Any]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def normalise(message: Any, index: int) -> Message:
    """Return the message in the canonical form that chat formats render. Raises ApiError naming ``messages[index]``.

    Content becomes a string, ``developer`` becomes ``system``, arguments become a JSON string, empty fields are
    removed.
    """
    where = f"messages[{index}]"
    if not isinstance(message, dict):
        raise invalid(where, "must be an object with role and content")
    given = message.get("role")
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise invalid(f"{where}.role", f"unknown role {shown(given)}; one of {', '.join(_ROLES)}")
    out: Message = {"role": role, "content": _text(message.get("content"), where)}
    if role == "assistant":
        calls = message.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                raise invalid(f"{where}.tool_calls", "must be a list")
            out["tool_calls"] = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
        if thinking := _thinking(message):
            out["reasoning_content"] = thinking
    elif role == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            raise invalid(f"{where}.tool_call_id", "a tool message needs the id of the call that it answers")
        out["tool_call_id"] = call_id
    name = message.get("name")
    if isinstance(name, str) and name:
        out["name"] = name
    return out


def text_length(message: Any) -> int:
    """Number of characters of content and arguments, whatever their type."""
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    texts = [content] if not isinstance(content, list) else [p.get("text") for p in content if isinstance(p, dict)]
    for call in _listed(message.get("tool_calls")):
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts.append(function.get("arguments"))
    return sum(len(text) for text in texts if isinstance(text, str))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_VARYING = re.compile(r"\b0x[0-9a-f]{6,}\b|\b\d+(\.\d+)?(?= ?(s|ms|us|sec|secs|seconds)\b)", re.IGNORECASE)


def steady(message: Message) -> Message:
    """Mask in ``message`` what differs each time that a program runs: durations and memory addresses."""
    content = message.get("content")
    return {**message, "content": _VARYING.sub("#", content)} if isinstance(content, str) else message


def same_message(ours: Message, theirs: Any) -> bool:
    """Return whether ``theirs`` means the same as ``ours`` (already accepted); fast if nothing changed."""
    if ours == theirs:
        return True
    if not isinstance(theirs, dict):
        return False
    a, b = _canonical(ours), _canonical(theirs)
    if a is None or a != b:
        return False
    # clients may drop the reasoning when they send a message back, but not change it
    thinking = _thinking(theirs)
    return not thinking or thinking == _thinking(ours)


def with_thinking(theirs: Message, ours: Message) -> Message:
    """Return ``theirs``, which means the same as ``ours``, with the thinking that the client left out: it may send it
    again later."""
    thinking = _thinking(ours)
    return {**theirs, "reasoning_content": thinking} if thinking and not _thinking(theirs) else theirs


def _canonical(message: Message) -> tuple[Any, ...] | None:
    try:
        role = _ROLES[message["role"]]
        content = _text(message.get("content"), "")
        if role != "assistant":
            return (role, content, message.get("tool_call_id") if role == "tool" else None, message.get("name") or None)
        # a client may rename the ids of calls; they are not part of the content
        calls = [_call(call, "") for call in message.get("tool_calls") or ()]
        said = [(c["function"]["name"], _arguments(c["function"]["arguments"])) for c in calls]
        return (role, content.strip(), said)
    except Exception:  # not a valid message: it equals nothing, and `normalise` reports the problem
        return None


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise invalid(f"{where}.content", "must be a string or a list of text parts")
    parts: list[str] = []
    for i, part in enumerate(content):
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise invalid(f"{where}.content[{i}]", f"only text parts are supported, got {kind!r}")
    return "".join(parts)


def _call(call: Any, where: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(where, "must be {id, type: 'function', function: {name, arguments}}")
    arguments = function.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    identity = call.get("id")
    return {
        "id": identity if isinstance(identity, str) else "",
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(text: str) -> Any:
    """Return arguments as a value if they are JSON, else as text; tagged, so that a text never equals a value.

    Numbers are compared as doubles, because a JavaScript client sends 1.0 back as 1.
    """
    try:
        return ("json", json.dumps(loads(text, _double), sort_keys=True))
    except (ValueError, RecursionError):
        return ("text", text)


def _double(text: str) -> float:
    return float(text) + 0.0  # turns -0.0 into 0.0


def _thinking(message: Message) -> str:
    value = message.get("reasoning_content") or message.get("reasoning") or ""
    return value if isinstance(value, str) else ""
