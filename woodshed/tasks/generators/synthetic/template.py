"""Templates of functions for synthetic tasks, and how a choice of their slots becomes source.

A template is the body of a function with slots; a slot lists options, each a tuple of a word (part of the semantic key
and of the function's name) and code. Templates of one ``family`` with equal words share the semantic key: they are two
ways to write the same function. Options that many templates use are here too: conditions and expressions over a number
``x``, relations of ``a`` and ``b``.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from woodshed.record.python_source import parse_python

Option = tuple[str, ...]
Slots = Mapping[str, Sequence[Option]]


@dataclass(frozen=True)
class Template:
    """``body`` is unindented code with ``{slot[1]}`` places and canonical variable names; ``name`` likewise with
    ``{slot[0]}``. ``args`` maps parameters to kinds of input (``function.KINDS``); a body that uses ``k`` gets it as a
    further parameter."""

    family: str
    name: str
    args: Mapping[str, str]
    body: str
    slots: Slots = field(default_factory=dict)

    def choices(self) -> list[dict[str, Option]]:
        names = list(self.slots)
        return [dict(zip(names, options)) for options in product(*(self.slots[n] for n in names))]

    def key(self, choice: Mapping[str, Option]) -> str:
        """The semantic key: ``family:word:word``."""
        return ":".join([self.family, *(choice[slot][0] for slot in sorted(choice))])

    def render(self, choice: Mapping[str, Option], rng: random.Random) -> tuple[str, str, tuple[str, ...]]:
        """Return (function name, normalised source, kinds of its arguments), with variable names drawn from ``rng``."""
        name = re.sub(r"_+", "_", self.name.format_map(choice)).strip("_")
        body = self.body.strip("\n").format_map(choice)
        args = dict(self.args)
        if re.search(r"\bk\b", body):
            args.setdefault("k", "small")
        source = f"def {name}({', '.join(args)}):\n" + "\n".join("    " + line for line in body.split("\n"))
        tree = parse_python(source)
        _rename(tree, rng)
        return name, ast.unparse(tree) + "\n", tuple(args.values())


_NAMES: dict[str, tuple[str, ...]] = {
    "xs": ("xs", "values", "items", "nums", "data", "numbers"),
    "ys": ("ys", "others", "right", "more"),
    "x": ("x", "v", "value", "item", "num"),
    "a": ("a", "first", "left", "p"),
    "b": ("b", "second", "other", "q"),
    "acc": ("total", "result", "acc", "answer"),
    "out": ("out", "res", "found", "kept"),
    "best": ("best", "top", "pick"),
    "cur": ("cur", "run", "now"),
    "i": ("i", "pos", "idx"),
    "j": ("j", "other_i", "end"),
    "k": ("k", "limit", "step"),
    "n": ("n", "number", "m"),
    "d": ("d", "digit", "r"),
    "text": ("text", "s", "line"),
    "ch": ("c", "ch", "letter"),
    "words": ("words", "names", "tokens"),
    "w": ("w", "word", "name"),
    "table": ("table", "counts", "groups"),
    "key": ("key", "slot"),
    "grid": ("grid", "rows", "matrix"),
    "row": ("row", "cells"),
    "seen": ("seen", "known"),
}


def _rename(tree: ast.Module, rng: random.Random) -> None:
    chosen: dict[str, str] = {}
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.arg)]
    for node in nodes:
        old = node.id if isinstance(node, ast.Name) else node.arg
        if old in _NAMES and old not in chosen:
            free = [n for n in _NAMES[old] if n not in chosen.values()]
            chosen[old] = rng.choice(free)
        new = chosen.get(old, old)
        if isinstance(node, ast.Name):
            node.id = new
        else:
            node.arg = new


CONDITIONS: list[Option] = [
    ("positive", "x > 0"),
    ("negative", "x < 0"),
    ("even", "x % 2 == 0"),
    ("odd", "x % 2 == 1"),
    ("big", "x > 4"),
    ("small", "x < 3"),
    ("nonzero", "x != 0"),
    ("third", "x % 3 == 0"),
    ("above", "x > k"),
    ("below", "x < k"),
    ("mid", "1 < x and x < 6"),
    ("outer", "x < 0 or x > 5"),
    ("near", "abs(x) < 3"),
    ("even_big", "x > 2 and x % 2 == 0"),
]
FEW_CONDITIONS = [CONDITIONS[i] for i in (0, 2, 4, 7, 8, 11)]

EXPRESSIONS: list[Option] = [
    ("plain", "x"),
    ("double", "x * 2"),
    ("square", "x * x"),
    ("next", "x + 1"),
    ("prev", "x - 1"),
    ("half", "x // 2"),
    ("minus", "-x"),
    ("size", "abs(x)"),
    ("rest", "x % 3"),
    ("shift", "x + k"),
    ("gap", "x - k"),
    ("flip", "10 - x"),
]
CHANGES = EXPRESSIONS[1:]
FEW_EXPRESSIONS = [EXPRESSIONS[i] for i in (0, 1, 2, 5, 8, 10)]
FEW_CHANGES = FEW_EXPRESSIONS[1:]

PAIR_VALUES: list[Option] = [
    ("sum", "a + b"),
    ("gap", "b - a"),
    ("product", "a * b"),
    ("max", "max(a, b)"),
    ("min", "min(a, b)"),
    ("far", "abs(a - b)"),
    ("twice", "a * 2 + b"),
    ("rest", "a - b % 3"),
]
PAIR_TESTS: list[Option] = [
    ("up", "a < b"),
    ("down", "a > b"),
    ("same", "a == b"),
    ("change", "a != b"),
    ("far", "abs(a - b) > 3"),
    ("heavy", "a + b > 6"),
    ("even", "(a + b) % 2 == 0"),
    ("signs", "a < 0 and b >= 0"),
    ("double", "b > a * 2"),
]
SUMMARIES: list[Option] = [("sum", "sum"), ("max", "max"), ("min", "min"), ("len", "len"), ("sorted", "sorted")]
REDUCTIONS: list[Option] = SUMMARIES[:3]
