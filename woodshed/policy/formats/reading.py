"""What reading completions takes in every format: stop tokens, thinking, JSON as a policy writes it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from .base import ToolCall

THINK, THINK_END = "<think>", "</think>"

_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")


def new_call_id() -> str:
    """An id that no other call of the conversation has."""
    return "call_" + os.urandom(9).hex()


def without_stop(text: str, stop_tokens: Sequence[str]) -> str:
    """The text without the stop token that may end it."""
    return text.removesuffix(next((t for t in stop_tokens if text.endswith(t)), ""))


def split_thinking(text: str) -> tuple[str | None, str]:
    """What a leading ``<think>`` block holds, and what follows it; an unclosed block is all thinking."""
    stripped = text.lstrip()
    if not stripped.startswith(THINK):
        return None, text
    thinking, _, rest = stripped[len(THINK) :].partition(THINK_END)
    return thinking, rest


def skip_blanks(text: str, start: int) -> int:
    """Index of the first character from ``start`` on that is no blank to JSON."""
    found = _BLANKS.match(text, start)
    return found.end() if found else start


def read_json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, after blanks, and the index of what follows it.

    Raises ValueError on anything else: bad syntax, a nesting too deep to handle, half of a surrogate pair (which no
    UTF-8 reply could carry on).
    """
    try:
        data, end = _DECODER.raw_decode(text, skip_blanks(text, start))
        json.dumps(data, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair") from None
    return data, end


def read_json_object(text: str) -> dict[str, Any]:
    """A JSON object that a policy wrote. Raises ValueError as ``read_json_at`` does, and for what is no object."""
    data, end = read_json_at(text, 0)
    if skip_blanks(text, end) < len(text):
        raise ValueError(f"text after the object, at character {end}")
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def call_of_json(data: Any, field: str, other: str | None = None) -> tuple[ToolCall | None, str | None]:
    """The call in ``{"name": ..., FIELD: ...}``, and what is wrong with it. ``other`` may stand for ``field``.

    Arguments of the wrong kind still make a call; without a name there is none.
    """
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return None, f'tool call must be a JSON object with "name" and "{field}"'
    arguments = data.get(field, data.get(other, {}) if other else {})
    if isinstance(arguments, str):
        # Some models write the arguments as a string that holds JSON.
        return ToolCall(new_call_id(), data["name"], arguments), None
    problem = None if isinstance(arguments, dict) else "the arguments of a tool call must be a JSON object"
    return ToolCall(new_call_id(), data["name"], json.dumps(arguments, ensure_ascii=False)), problem
