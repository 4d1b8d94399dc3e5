"""Replacements of the constants of a test, for tests with other inputs."""

from __future__ import annotations

import re
import zlib
from typing import Any, Literal

from .reshape import is_number, reshaped

Kind = Literal["numbers", "strings", "some", "shapes", "same"]
KINDS: tuple[Kind, ...] = ("numbers", "strings", "some", "shapes")
"""``some`` changes constants of both kinds, but only about every second, which breaks relations between two inputs.
``shapes`` changes lengths, order and magnitude (``reshape.py``), the others one letter or digit."""
DRAWN: Kind = "shapes"
"""The kind that is drawn from the key of a run; the others are public."""
SAME: Kind = "same"
"""No constant changes: records what the visible tests compare."""

_LARGE = 10


def other(value: Any, kind: Kind, seed: str) -> Any:
    """Return the replacement of a constant in tests altered in that kind (for ``some``: if the constant is chosen)."""
    if kind == SAME:
        return value
    if type(value) is bytes:
        return other(value.decode(), kind, seed).encode() if value.isascii() else value
    if kind == "shapes":
        return reshaped(value, seed)
    if type(value) is str:
        new = other_letter(value) if kind != "numbers" else value
        return other_digit(value) if new == value and kind != "strings" else new
    if kind == "strings":
        return value
    if type(value) is int:
        return other_number(value)
    return value * 1.25 if type(value) is float else value


def chosen(number: int) -> bool:
    """Return whether ``some`` changes constant ``number`` of a file: about every second one, in no regular order."""
    return bool(zlib.crc32(str(number).encode()) & 1)


def other_number(value: int) -> int:
    """Return the next integer away from 0; 0 stays. A value of at least 10 may be a maximum (12 months, 59 minutes), so
    it moves towards 0."""
    away = (value > 0) - (value < 0)
    return value + away if abs(value) < _LARGE else value - away


def other_digit(text: str) -> str:
    """Change the last digit that is not 0; texts with letters or markup stay as they are."""
    if re.search(r"[^\W\d_]|[\\%{]", text):
        return text
    return re.sub(r"[1-9](?=\D*$)", lambda match: str(int(match[0]) + 1) if match[0] != "9" else "8", text)


def other_letter(text: str) -> str:
    """Replace the last letter by the next one; texts with markup and texts that parse as numbers (``nan``) stay."""
    if any(mark in text for mark in "%{\\") or is_number(text):
        return text
    for at in range(len(text) - 1, -1, -1):
        if text[at].isascii() and text[at].isalpha():
            letter = chr(ord(text[at]) + 1) if text[at] not in "zZ" else chr(ord(text[at]) - 1)
            return text[:at] + letter + text[at + 1 :]
    return text
