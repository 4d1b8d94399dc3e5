"""Readers of typed fields of a JSON body. All of them raise ApiError that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from woodshed.engine.protocol import MOST_PENALTY
from woodshed.record.large_json import loads

from .errors import ApiError, invalid, shown


def json_object(body: bytes) -> dict[str, Any]:
    """Parse the body, which must be a JSON object."""
    try:
        data = loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "invalid_json", f"the request body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, "invalid_json", "the request body must be a JSON object")
    return data


_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")


def sampling(data: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of ``Request`` that have the same name in every dialect.

    ``top_k``, ``min_p``, ``seed``, ``logit_bias`` and penalties are accepted in all dialects, as in other open servers.
    """
    return {
        "temperature": number(data, "temperature", 1.0, 0.0, 2.0),
        "top_p": number(data, "top_p", 1.0, 0.0, 1.0),
        "top_k": max(0, integer(data, "top_k", -1) or 0),  # -1 is "off" for clients of vLLM
        "min_p": number(data, "min_p", 0.0, 0.0, 1.0),
        "seed": integer(data, "seed", -(1 << 63)),
        "logit_bias": _logit_bias(data.get("logit_bias")),
        "presence_penalty": number(data, "presence_penalty", 0.0, -MOST_PENALTY, MOST_PENALTY),
        "frequency_penalty": number(data, "frequency_penalty", 0.0, -MOST_PENALTY, MOST_PENALTY),
        "repetition_penalty": number(data, "repetition_penalty", 1.0, 0.01, 100.0),
        "stream": flag(data, "stream"),
        "model": data["model"] if isinstance(data.get("model"), str) else "",
    }


def flag(data: dict[str, Any], name: str) -> bool:
    """Read a boolean; False if absent or null."""
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise invalid(name, "must be true or false")


def integer(data: dict[str, Any], name: str, low: int) -> int | None:
    """Read an integer of at least ``low``; None if absent or null."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < low or value >= 1 << 63:
        raise invalid(name, f"must be an integer of at least {low}, got {shown(value)}")
    return value


def number(data: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise invalid(name, f"must be a number from {low:g} to {high:g}, got {shown(value)}")
    return float(value)


def string(data: dict[str, Any], name: str, where: str) -> str:
    """Read a required string; ``where`` is the path of ``data`` and a dot, or empty."""
    value = data.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}{name}", f"must be a string, got {shown(value)}")
    return value


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    """Check a list of JSON objects; empty if absent or null."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(where, f"must be a list, got {shown(value)}")
    for i, item in enumerate(value):
        if not isinstance(item, dict):
            raise invalid(f"{where}[{i}]", f"must be an object, got {shown(item)}")
    return value


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    try:
        bias = {int(token): float(amount) for token, amount in value.items()}
    except (AttributeError, TypeError, ValueError, OverflowError):
        raise invalid("logit_bias", "must map token ids to numbers") from None
    if not all(-100 <= amount <= 100 for amount in bias.values()) or any(token < 0 for token in bias):
        raise invalid("logit_bias", "needs token ids and numbers from -100 to 100")
    return bias


def refuse(data: dict[str, Any], reasons: Mapping[str, str]) -> None:
    """Raise ApiError if a field is set that other dialects have and this one ignores: its effect would be missing."""
    for name, reason in reasons.items():
        if data.get(name) not in (None, False, 0):
            raise invalid(name, reason, "unsupported_value")


def one_choice(data: dict[str, Any]) -> None:
    """Raise ApiError if several choices are requested, in a dialect that has only one."""
    if data.get("n") not in (None, 1):
        raise invalid("n", "several choices are available in Chat Completions only", "unsupported_value")


def unknown(data: dict[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    """Return the names of fields that have a value but no effect here: at most 32 names of at most 64 characters."""
    names = [name[:64] for name, value in data.items() if name not in known and value not in (None, False, [], {}, "")]
    return tuple(names[:32])


SAMPLING = frozenset(
    (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "logit_bias",
        "stream",
        "model",
        "messages",
        "tools",
        "tool_choice",
        *_PENALTIES,
    )
)
"""Fields that every dialect reads."""
