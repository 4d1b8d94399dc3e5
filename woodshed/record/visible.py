"""Sanitising of untrusted text (of a policy, its programs, or packages) for display on a terminal."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Replace control characters and lone surrogates by U+FFFD: output of a policy or its programs must not control
    the terminal, nor end a program that prints it."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
