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


Split = Literal["train", "sft", "heldout"]
TEMPLATES: tuple[Template, ...] = (
    *templates_numbers.TEMPLATES,
    *templates_sequences.TEMPLATES,
    *templates_words.TEMPLATES,
)
VISIBLE = 6
HIDDEN = 10
HELDOUT_SHARE = 0.2


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


def is_heldout(key: str) -> bool:
    """Whether a semantic key is held out: decided by its hash, so it does not depend on what else is drawn."""
    value = int.from_bytes(hashlib.blake2s(key.encode(), digest_size=4).digest(), "big")
    return value < HELDOUT_SHARE * 2**32


def semantic_keys(split: Split | None = None) -> list[str]:
    """All distinct keys, or those of one split (``train`` and ``sft`` share theirs)."""
    keys = dict.fromkeys(t.key(choice) for t in TEMPLATES for choice in t.choices())
    return [key for key in keys if split is None or is_heldout(key) == (split == "heldout")]


def draw_function(rng: random.Random, split: Split) -> SyntheticFunction:
    """One function whose key is of ``split``. Redraws until its visible cases have different values and none raises."""
    templates, weights, choices = _choices(split == "heldout")
    while True:
        index = rng.choices(range(len(templates)), weights)[0]
        function = build_function(templates[index], rng.choice(choices[index]), rng)
        if function is not None:
            return function


def draw_functions(n: int, seed: int, split: Split) -> list[SyntheticFunction]:
    """``n`` functions, independent of each other; the same for the same seed."""
    return [draw_function(random.Random(f"function:{split}:{seed}:{i}"), split) for i in range(n)]


def build_function(template: Template, choice: dict[str, Option], rng: random.Random) -> SyntheticFunction | None:
    """Render, draw distinct inputs, run; None if three draws of inputs do not tell the function from a constant."""
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


@lru_cache(maxsize=2)
def _choices(heldout: bool) -> tuple[list[Template], list[float], list[list[dict[str, Option]]]]:
    """Templates, weighted by the square root of their number of choices: between equal shapes and equal keys."""
    templates, weights, choices = [], [], []
    for template in TEMPLATES:
        own = [choice for choice in template.choices() if is_heldout(template.key(choice)) == heldout]
        if own:
            templates.append(template)
            weights.append(len(own) ** 0.5)
            choices.append(own)
    return templates, weights, choices
