"""Predictions of answers to altered inputs without computing them: the visible answer, altered as the input was.

All values are texts (``value_runner.py``). For code that only moves data, carrying a known change of the input over to
the answer gives the correct value, so such values cannot distinguish a fix from memorised answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

Change = tuple[object, object]
"""(constant of a visible test, its replacement in the altered test)."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|.", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])(?:f(?=-?\d+\.))?(-?\d+(?:\.\d+)?)(?![\w.])")
"""A number of a text; a float that is a value of its own has an ``f`` before it."""
_LONGEST = 2000
"""Maximum characters of texts that are compared piece by piece."""


def predictions(
    visible: str | None, changes: Sequence[Change], given_visible: str | None, given: str | None
) -> frozenset[str]:
    """Return texts that follow from the ``visible`` answer by the ``changes`` of its constants, or by the difference
    between the given code's answers to both inputs (``given_visible``, ``given``); and ``given`` itself."""
    found: set[str] = set()
    if visible is not None:
        for strings in (_whole(changes), _words(changes), {**_words(changes), **_whole(changes)}, _letters(changes)):
            found.add(_replaced(visible, strings))
        found |= {_numbers(text, changes) for text in (visible, *found)}
    if visible is not None and given is not None and given_visible is not None:
        found.add(_carried(given_visible, given, visible))
        found.add(_carried(given_visible, visible, given))
    if given is not None:
        found.add(given)
    return frozenset(found)


def _whole(changes: Iterable[Change]) -> dict[str, str]:
    """Map every old text to its new one, also in other letter cases and as bytes in hexadecimal."""
    found: dict[str, str] = {}
    for old, new in changes:
        if isinstance(old, str) and isinstance(new, str) and old:
            for turn in (str, str.lower, str.upper, str.capitalize, str.title, str.swapcase):
                found.setdefault(_inner(turn(old)), _inner(turn(new)))
            found.setdefault(_hex(old), _hex(new))
    return found


def _words(changes: Iterable[Change]) -> dict[str, str]:
    """Do the same as ``_whole`` word by word, if both texts have equally many words."""
    pairs: list[Change] = []
    for old, new in changes:
        if isinstance(old, str) and isinstance(new, str):
            before, after = _WORD.findall(old), _WORD.findall(new)
            if len(before) == len(after):
                pairs += [(a, b) for a, b in zip(before, after) if a != b]
    return _whole(pairs)


def _letters(changes: Iterable[Change]) -> dict[str, str]:
    """Do the same as ``_whole`` character by character, if both texts are equally long."""
    pairs: list[Change] = []
    for old, new in changes:
        if isinstance(old, str) and isinstance(new, str) and len(old) == len(new):
            pairs += [(a, b) for a, b in zip(old, new) if a != b]
    return _whole(pairs)


def _replaced(text: str, strings: Mapping[str, str]) -> str:
    if not strings:
        return text
    pattern = "|".join(re.escape(old) for old in sorted(strings, key=len, reverse=True))
    return re.sub(pattern, lambda match: strings[match[0]], text)


def _numbers(text: str, changes: Iterable[Change]) -> str:
    table = {repr(old): repr(new) for old, new in changes if type(old) in (int, float) and type(new) in (int, float)}
    if not table:
        return text
    return _NUMBER.sub(lambda match: match[0].removesuffix(match[1]) + table.get(match[1], match[1]), text)


def _carried(a: str, b: str, c: str) -> str:
    """Apply the changes that turn ``a`` into ``b`` to ``c``."""
    if max(len(a), len(b), len(c)) > _LONGEST:
        return c
    before, after = _TOKEN.findall(a), _TOKEN.findall(b)
    strings: dict[str, str] = {}
    for tag, i, j, k, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "insert" and i:  # an insertion is attached to the token that it follows
            strings[before[i - 1]] = before[i - 1] + "".join(after[k:end])
        elif tag != "equal":
            strings["".join(before[i:j])] = "".join(after[k:end])
    return _replaced(c, {old: new for old, new in strings.items() if old})


def _inner(text: str) -> str:
    """Return a text as it appears between the quotes of an encoded string."""
    return json.dumps(text)[1:-1]


def _hex(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()
