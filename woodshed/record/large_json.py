"""Parser of JSON of any size that does not stall the other threads of the process.

``json.loads`` holds the GIL until it is done: a second for 16 MB of small lists. Long texts are therefore parsed in
Python, which releases the GIL every few milliseconds, and strings piece by piece.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

AT_ONCE = 64 << 10
"""Maximum number of characters that ``json.loads`` reads at once: at worst 5 ms."""
_PIECE = 64 << 10
_LONGEST_NUMBER = 5_000
"""Maximum length of a number in characters; Python parses integers of up to 4,300 digits."""
_BLANKS = frozenset(" \t\n\r")
_BLANK = re.compile(r"[ \t\n\r]*")
_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|null|true|false|NaN|-?Infinity")
_UNFINISHED = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z")
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
VALUES = 50_000
"""Maximum number of values (objects, lists, strings, numbers) in a long text. A conversation has a few per message."""


def loads(text: str | bytes, number: Callable[[str], Any] | None = None) -> Any:
    """Parse like ``json.loads``; ``number``, if given, converts numbers.

    Raises ValueError, also if a long text has more than ``VALUES`` values, and RecursionError if it is nested too
    deeply.
    """
    if len(text) <= AT_ONCE:
        return json.loads(text, parse_int=number, parse_float=number)
    if isinstance(text, bytes):
        text = _decoded(text)
    return _Reader(text, number).whole()


class _Reader:
    """Parses values of ``text`` one after the other; each method returns a value and the index after it."""

    def __init__(self, text: str, number: Callable[[str], Any] | None) -> None:
        self._text = text
        self._number = number
        self._left = VALUES

    def whole(self) -> Any:
        value, at = self._value(self._blank(0))
        at = self._blank(at)
        if at != len(self._text):
            raise json.JSONDecodeError("Extra data", self._text, at)
        return value

    def _value(self, at: int) -> tuple[Any, int]:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {VALUES} values")
        text = self._text
        first = text[at : at + 1]
        if first == '"':
            return self._string(at + 1)
        if first == "{":
            return self._object(self._blank(at + 1))
        if first == "[":
            return self._array(self._blank(at + 1))
        if found := _WORD.match(text, at, at + _LONGEST_NUMBER):
            return json.loads(found[0], parse_int=self._number, parse_float=self._number), found.end()
        raise json.JSONDecodeError("Expecting value", text, at)

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        text, found = self._text, dict[str, Any]()
        if text[at : at + 1] == "}":
            return found, at + 1
        while True:
            if text[at : at + 1] != '"':
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            name, at = self._string(at + 1)
            at = self._blank(at)
            if text[at : at + 1] != ":":
                raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
            found[name], at = self._value(self._blank(at + 1))
            at = self._blank(at)
            end = text[at : at + 1]
            if end == "}":
                return found, at + 1
            if end != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = self._blank(at + 1)

    def _array(self, at: int) -> tuple[list[Any], int]:
        text, found = self._text, list[Any]()
        if text[at : at + 1] == "]":
            return found, at + 1
        while True:
            value, at = self._value(at)
            found.append(value)
            at = self._blank(at)
            end = text[at : at + 1]
            if end == "]":
                return found, at + 1
            if end != ",":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
            at = self._blank(at + 1)

    def _blank(self, at: int) -> int:
        """Return the index of the first character from ``at`` on that is not blank."""
        text = self._text
        if text[at : at + 1] not in _BLANKS:
            return at
        while True:
            found = _BLANK.match(text, at, at + _PIECE)
            assert found is not None
            if found.end() < at + _PIECE:
                return found.end()
            at = found.end()

    def _string(self, start: int) -> tuple[str, int]:
        """Parse a string whose content begins at ``start``."""
        text = self._text
        end = text.find('"', start, start + _PIECE)
        if end >= 0 and text[end - 1] != "\\":
            return scanstring(text, start, True)
        parts: list[str] = []
        while True:
            piece = text[start : start + _PIECE]
            with contextlib.suppress(json.JSONDecodeError):  # the string does not end in this piece, or is malformed
                part, end = scanstring(piece, 0, True)
                return "".join([*parts, part]), start + end
            if start + _PIECE >= len(text):
                return scanstring(text, start, True)  # raises
            piece = piece[: _whole(piece)]
            part, end = scanstring(piece + '"', 0, True)
            parts.append(part)
            start += len(piece)


def _whole(piece: str) -> int:
    """Return the length of the longest prefix that ends neither within an escape nor within a surrogate pair."""
    end = len(piece)
    end -= (end - len(piece.rstrip("\\"))) % 2
    if (found := _UNFINISHED.search(piece, max(0, end - 5), end)) and _starts_escape(piece, found.start()):
        end = found.start()
    if (found := _HIGH.search(piece, max(0, end - 6), end)) and _starts_escape(piece, found.start()):
        end = found.start()
    return end


def _starts_escape(piece: str, at: int) -> bool:
    """Return whether the backslash at ``at`` begins an escape, rather than being escaped itself."""
    return (at - len(piece[:at].rstrip("\\"))) % 2 == 0


def _decoded(data: bytes) -> str:
    """Decode ``data`` in pieces. Raises ValueError if it is not text."""
    decoder = codecs.getincrementaldecoder(json.detect_encoding(data))("surrogatepass")
    starts = range(0, len(data), 1 << 20)
    return "".join([decoder.decode(data[i : i + (1 << 20)], i + (1 << 20) >= len(data)) for i in starts])
