"""Anthropic Messages has a call's arguments as a JSON object; a policy may write anything. Both ways, without loss."""

from __future__ import annotations

import json
from typing import Any

from woodshed.record.large_json import loads

_RAW = "_arguments"


def to_input(arguments: str) -> dict[str, Any]:
    """The object that ``arguments`` holds; where they hold none, ``{"_arguments": arguments}``."""
    try:
        found = loads(arguments)
        json.dumps(found, allow_nan=False)  # NaN and infinity are no JSON, and other clients could not read them
    except (ValueError, RecursionError):
        return {_RAW: arguments}
    if not isinstance(found, dict) or _is_raw(found):
        return {_RAW: arguments}
    return found


def from_input(input: dict[str, Any]) -> str:
    """The arguments that ``to_input`` made this object of."""
    return input[_RAW] if _is_raw(input) else json.dumps(input, ensure_ascii=False)


def _is_raw(input: dict[str, Any]) -> bool:
    return len(input) == 1 and isinstance(input.get(_RAW), str)
