"""Random inputs of study functions: small plain values that print short and hit the boundaries of small constants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

_WORDS = (
    "apple", "bob", "cat", "dune", "echo", "fig", "gas", "Hat", "ink", "Jam", "kiwi", "lamp", "mum", "Nut",
    "oak", "pea", "rat", "sun", "tent", "Urn", "van", "wow", "yes", "Zoo", "area", "noon", "a", "ox",
    "olive", "Peach", "river", "banana", "to", "be", "I", "level", "orange", "it",
)  # fmt: skip
_LETTERS = "aabbceeioxyzABEX013 -"


def ints(rng: random.Random) -> list[int]:
    return [rng.randint(-4, 9) for _ in range(rng.randint(3, 6))]


def _pool(rng: random.Random) -> list[int]:
    return [rng.randint(0, 4) for _ in range(rng.randint(4, 7))]


def _words(rng: random.Random) -> list[str]:
    return rng.sample(_WORDS, rng.randint(3, 5))


def _text(rng: random.Random) -> str:
    return "".join(rng.choice(_LETTERS) for _ in range(rng.randint(4, 9)))


def _brackets(rng: random.Random) -> str:
    return "".join(rng.choice("()()x[]") for _ in range(rng.randint(4, 9)))


def _grid(rng: random.Random) -> list[list[int]]:
    width = rng.randint(2, 3)
    return [[rng.randint(-4, 9) for _ in range(width)] for _ in range(width)]


def _scores(rng: random.Random) -> dict[str, int]:
    return {name: rng.randint(-4, 9) for name in rng.sample("abcdefg", rng.randint(2, 4))}


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "ints": ints,
    "pool": _pool,
    "small": lambda rng: rng.randint(1, 4),
    "int": lambda rng: rng.randint(-8, 14),
    "count": lambda rng: rng.randint(2, 30),
    "number": lambda rng: rng.randint(1, 999) * rng.choice((1, 1, 10)),
    "words": _words,
    "text": _text,
    "brackets": _brackets,
    "grid": _grid,
    "scores": _scores,
}
"""Kind of argument -> generator. Values are int, str, list and dict with str keys, so JSON carries them unchanged."""


def draw_arguments(kinds: tuple[str, ...], rng: random.Random) -> list[Any]:
    return [KINDS[kind](rng) for kind in kinds]
