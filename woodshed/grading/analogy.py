"""What the answer to an altered input would be if nothing were computed: the visible answer, altered as the input was.

All values are texts (``value_runner.py``). For code that only moves data about, carrying a known change over from the
question to the answer is right, so such values do not tell a fix from an answer learnt by heart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher

Change = tuple[object, object]
"""(constant of a visible test, what stands for it in the altered one)."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|.", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
_LONGEST = 2000
"""Texts beyond it are not compared piece by piece."""


def predictions(
    visible: str | None, changes: Sequence[Change], given_visible: str | None, given: str | None
) -> frozenset[str]:
    """Texts that follow from the ``visible`` answer: by the ``changes`` of its constants, and by what the given code
    makes of both inputs (``given_visible``, ``given``), in which the changes can be read off."""
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
    """Every old text with its new one, in the cases that code turns texts into, as text and as bytes."""
    found: dict[str, str] = {}
    for old, new in changes:
        if isinstance(old, str) and isinstance(new, str) and old:
            for turn in (str, str.lower, str.upper, str.capitalize, str.title, str.swapcase):
                found.setdefault(_inner(turn(old)), _inner(turn(new)))
            found.setdefault(_hex(old), _hex(new))
    return found


def _words(changes: Iterable[Change]) -> dict[str, str]:
    """The same for each word, where both texts have as many."""
    pairs: list[Change] = []
    for old, new in changes:
        if isinstance(old, str) and isinstance(new, str):
            before, after = _WORD.findall(old), _WORD.findall(new)
            if len(before) == len(after):
                pairs += [(a, b) for a, b in zip(before, after) if a != b]
    return _whole(pairs)


def _letters(changes: Iterable[Change]) -> dict[str, str]:
    """The same for single characters, where the texts are of one length."""
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
    return _NUMBER.sub(lambda match: table.get(match[0], match[0]), text) if table else text


def _carried(a: str, b: str, c: str) -> str:
    """``c``, changed as ``a`` is changed into ``b``: what stands for another part there stands for it here."""
    if max(len(a), len(b), len(c)) > _LONGEST:
        return c
    before, after = _TOKEN.findall(a), _TOKEN.findall(b)
    strings: dict[str, str] = {}
    for tag, i, j, k, end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "insert" and i:  # an insertion has a place only beside what it follows
            strings[before[i - 1]] = before[i - 1] + "".join(after[k:end])
        elif tag != "equal":
            strings["".join(before[i:j])] = "".join(after[k:end])
    return _replaced(c, {old: new for old, new in strings.items() if old})


def _inner(text: str) -> str:
    """A text as it stands within the quotes of an encoded string."""
    return json.dumps(text)[1:-1]


def _hex(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").hex()
