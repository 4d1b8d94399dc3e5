"""Options that many templates share: conditions and expressions over one number ``x``, relations of ``a`` and ``b``."""

from __future__ import annotations

from .template import Option

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
