"""Functions of synthetic tasks: a rendered template, its executed cases, and the split of its semantic key.

Random inputs are small plain values that print short and hit the boundaries of small constants.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from . import templates_numbers, templates_sequences, templates_words
from .template import Option, Template

_WORDS = (
    "apple",
    "bob",
    "cat",
    "dune",
    "echo",
    "fig",
    "gas",
    "Hat",
    "ink",
    "Jam",
    "kiwi",
    "lamp",
    "mum",
    "Nut",
    "oak",
    "pea",
    "rat",
    "sun",
    "tent",
    "Urn",
    "van",
    "wow",
    "yes",
    "Zoo",
    "area",
    "noon",
    "a",
    "ox",
    "olive",
    "Peach",
    "river",
    "banana",
    "to",
    "be",
    "I",
    "level",
    "orange",
    "it",
)
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


Split = Literal["sft", "train", "dev", "heldout"]
"""Pretraining and SFT share ``sft``; RL has ``train``; settings are chosen on ``dev``; ``heldout`` is only reported."""
SHARES: dict[Split, float] = {"heldout": 0.2, "dev": 0.08, "train": 0.57, "sft": 0.15}
"""Share of the semantic keys of each split; they sum to 1. Few functions come with their repairs and many with tests
alone, as in life: with repairs for 55 % RL had nothing left to teach (docs/tried.md)."""
TEMPLATES: tuple[Template, ...] = (
    *templates_numbers.TEMPLATES,
    *templates_sequences.TEMPLATES,
    *templates_words.TEMPLATES,
)
VISIBLE = 6
HIDDEN = 10


@dataclass(frozen=True)
class Case:
    """A call and its value: plain data (int, bool, str, None, list, dict with str keys), so JSON keeps it exactly."""

    args: list[Any]
    want: Any


@dataclass(frozen=True)
class SyntheticFunction:
    """``cases[:VISIBLE]`` go into the workspace, the others only into grading. ``source`` is normalised."""

    key: str
    name: str
    source: str
    cases: tuple[Case, ...]


def split_of(key: str) -> Split:
    """The split that a semantic key belongs to: by a hash, so it never depends on what else is drawn."""
    value = int.from_bytes(hashlib.blake2s(key.encode(), digest_size=4).digest(), "big") / 2**32
    for split, share in SHARES.items():
        if value < share:
            return split
        value -= share
    return "sft"


def semantic_keys(split: Split | None = None) -> list[str]:
    """All distinct keys, or those of one split."""
    keys = dict.fromkeys(t.key(choice) for t in TEMPLATES for choice in t.choices())
    return [key for key in keys if split is None or split_of(key) == split]


def draw_function(rng: random.Random, split: Split) -> SyntheticFunction:
    """Draw a function with a key of ``split``, again and again until its visible cases differ and no case raises."""
    templates, weights, choices = _choices(split)
    while True:
        index = rng.choices(range(len(templates)), weights)[0]
        function = build_function(templates[index], rng.choice(choices[index]), rng)
        if function is not None:
            return function


def draw_functions(n: int, seed: int, split: Split) -> list[SyntheticFunction]:
    """``n`` functions, independent of each other; the same for the same seed."""
    return [draw_function(random.Random(f"function:{split}:{seed}:{i}"), split) for i in range(n)]


def build_function(template: Template, choice: dict[str, Option], rng: random.Random) -> SyntheticFunction | None:
    """Render, draw distinct inputs, run; None if three draws of inputs cannot tell the function from a constant."""
    name, source, kinds = template.render(choice, rng)
    space: dict[str, Any] = {}
    exec(compile(source, f"<{name}>", "exec"), space)  # our own template; no policy wrote it
    call = space[name]
    for _ in range(3):
        cases = _cases(call, kinds, rng)
        if cases and any(case.want != cases[0].want for case in cases[1:VISIBLE]):
            return SyntheticFunction(template.key(choice), name, source, cases)
    return None


def _cases(call: Any, kinds: tuple[str, ...], rng: random.Random) -> tuple[Case, ...]:
    cases: dict[str, Case] = {}
    for _ in range(4 * (VISIBLE + HIDDEN)):
        args = draw_arguments(kinds, rng)
        if repr(args) in cases:
            continue
        try:
            want = call(*copy.deepcopy(args))
        except (IndexError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return ()
        cases[repr(args)] = Case(args, want)
        if len(cases) == VISIBLE + HIDDEN:
            return tuple(cases.values())
    return ()


@lru_cache(maxsize=len(SHARES))
def _choices(split: Split) -> tuple[list[Template], list[float], list[list[dict[str, Option]]]]:
    """Return templates, weights and choices. The weight of a template is the square root of its number of choices, a
    compromise between equal weights of templates and equal weights of keys."""
    templates, weights, choices = [], [], []
    for template in TEMPLATES:
        own = [choice for choice in template.choices() if split_of(template.key(choice)) == split]
        if own:
            templates.append(template)
            weights.append(len(own) ** 0.5)
            choices.append(own)
    return templates, weights, choices
