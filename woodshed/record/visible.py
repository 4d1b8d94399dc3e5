"""Text of a policy, of its programs or of packages, made safe to show on a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """Text without control characters: what a policy or its programs print must not steer the terminal."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
