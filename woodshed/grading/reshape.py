"""Other inputs of another shape: strings with other words, lengths and order, numbers of another magnitude.

Their answers do not follow from the visible answer by carrying a known change over. They are drawn from a seed that the
policy does not know, and equal values always become equal new ones. Letters stay letters and digits stay digits, so
that most parsers still accept the new text.
"""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections.abc import Sequence
from typing import Any

_SHARE = 0.65
"""Share of constants that change: where some are names of options or modes, the others still test something."""
_SMALL = 1000
_MOST = 400
"""Maximum characters of texts that change; drawing longer ones costs more than it reveals."""
_PARTS = re.compile(r"[A-Za-z]+|\d+|[^A-Za-z\d]+")
_MARKUP = re.compile(r"[%{\\]")


def reshaped(value: Any, seed: str) -> Any:
    """Return another string or number in place of ``value``, or ``value`` itself; deterministic for a seed."""
    rng = _rng(seed, value)
    if type(value) is str:
        return _other_text(value, rng) if rng.random() < _SHARE else value
    if rng.random() >= _SHARE:
        return value
    if type(value) is int:
        return _other_int(value, rng)
    return _other_float(value, rng) if type(value) is float else value


def reordered(values: Sequence[Any], seed: str) -> list[int]:
    """Return the indices of ``values`` in another order, one perhaps twice. Values of mixed types keep their order."""
    places = list(range(len(values)))
    rng = _rng(seed, list(values))
    if len(values) < 2 or len({type(value) for value in values}) > 1 or rng.random() >= _SHARE:
        return places
    rng.shuffle(places)
    if rng.random() < 0.5:
        places.insert(rng.randrange(len(places) + 1), rng.choice(places))
    return places


def _rng(seed: str, value: Any) -> random.Random:
    return random.Random(hashlib.sha256(f"{seed}:{value!r}".encode("utf-8", "surrogatepass")).digest())


def _other_text(text: str, rng: random.Random) -> str:
    """Exchange, lengthen, shorten and repeat words; texts with markup and texts that parse as numbers stay."""
    if _MARKUP.search(text) or is_number(text) or not text.isascii() or len(text) > _MOST:
        return text
    parts = _PARTS.findall(text)
    letters = [n for n, part in enumerate(parts) if part[0].isalpha()]
    digits = [n for n, part in enumerate(parts) if part[0].isdigit()]
    of_length = {len(parts[n]): [m for m in digits if len(parts[m]) == len(parts[n])] for n in digits}
    for places in (letters, *of_length.values()):
        words = [parts[n] for n in places]
        rng.shuffle(words)
        for place, word in zip(places, words):
            parts[place] = word
    for n in letters:
        parts[n] = _other_word(parts[n], rng)
    for n in digits:
        parts[n] = _other_digits(parts[n], rng)
    if len(letters) > 1 and rng.random() < 0.5:  # one more word, with the separator before it
        n = letters[rng.randrange(1, len(letters))]
        between = parts[n - 1] if not parts[n - 1][0].isalnum() else ""
        parts[n + 1 : n + 1] = [between, _other_word(parts[n], rng)]
    return "".join(parts)


def _other_word(word: str, rng: random.Random) -> str:
    """Return a word of another length with other letters; the case of the first and of the other letters stays."""
    if len(word) == 1:
        return _letter(word, rng)
    inner = list(word)
    if len(inner) > 3 and rng.random() < 0.4:
        del inner[rng.randrange(1, len(inner))]
    else:
        at = rng.randrange(1, len(inner))
        inner[at:at] = [_letter(inner[at], rng) for _ in range(rng.randint(1, 3))]
    at = rng.randrange(len(inner))
    inner[at] = _letter(inner[at], rng)
    return "".join(inner)


def _letter(like: str, rng: random.Random) -> str:
    return rng.choice(string.ascii_uppercase if like.isupper() else string.ascii_lowercase)


def _other_digits(text: str, rng: random.Random) -> str:
    """Return another number with equally many digits, as in dates and versions; possible months remain possible."""
    if set(text) == {"0"}:
        return text
    if len(text) == 2 and int(text) < 32:
        return f"{rng.randint(1, 12) if int(text) < 13 else rng.randint(13, 28):02d}"
    first = "0" if text[0] == "0" else rng.choice("12345678")
    return first + "".join(rng.choice(string.digits) for _ in text[1:]) if len(text) > 1 else first


def _other_int(value: int, rng: random.Random) -> int:
    if abs(value) < 2:  # most often a flag
        return value if rng.random() < 0.7 else rng.choice((2, 3, 5))
    if abs(value) >= _SMALL:
        return value + rng.choice((-1, 1)) * max(1, abs(value) // rng.randint(5, 60))
    if rng.random() < 0.15:
        return -value - rng.randint(0, 4)
    return rng.choice((2 * value + 1, 3 * value - 1, value // 2, value + 7, 5 * value + 2))


def _other_float(value: float, rng: random.Random) -> float:
    if value != value or value in (0.0, float("inf"), float("-inf")):
        return value
    other = float(f"{value * rng.uniform(0.3, 3.5):.4g}")
    return -other if rng.random() < 0.15 else other


def is_number(text: str) -> bool:
    """Return whether ``float`` parses the text (``nan`` too)."""
    try:
        float(text)
    except ValueError:
        return False
    return True
