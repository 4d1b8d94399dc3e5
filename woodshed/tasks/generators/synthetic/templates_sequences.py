"""Templates over neighbours, pairs, slices, windows and grids."""

from __future__ import annotations

from .template import (
    CONDITIONS,
    EXPRESSIONS,
    FEW_CHANGES,
    FEW_CONDITIONS,
    FEW_EXPRESSIONS,
    PAIR_TESTS,
    PAIR_VALUES,
    REDUCTIONS,
    SUMMARIES,
    Template,
)

XS = {"xs": "ints"}
TWO = {"xs": "ints", "ys": "ints"}
GRID = {"grid": "grid"}
_WIDTHS = [("2", "2"), ("3", "3"), ("k", "k")]

TEMPLATES = [
    Template("steps", "steps_{v[0]}", XS, "return [{v[1]} for a, b in zip(xs, xs[1:])]", {"v": PAIR_VALUES}),
    Template("steps", "moves_{v[0]}", XS, """
out = []
for a, b in zip(xs, xs[1:]):
    out.append({v[1]})
return out
""", {"v": PAIR_VALUES}),
    Template("steps_fold", "{r[0]}_step_{v[0]}", XS, "return {r[1]}([{v[1]} for a, b in zip(xs, xs[1:])])",
             {"v": PAIR_VALUES, "r": REDUCTIONS}),
    Template("step_count", "{t[0]}_steps", XS, """
acc = 0
for i in range(1, len(xs)):
    a, b = (xs[i - 1], xs[i])
    if {t[1]}:
        acc += 1
return acc
""", {"t": PAIR_TESTS}),
    Template("peaks", "{p[0]}_{o[0]}", XS, """
out = []
for i in range(1, len(xs) - 1):
    if {p[1]}:
        out.append({o[1]})
return out
""", {"p": [("peaks", "xs[i] > xs[i - 1] and xs[i] > xs[i + 1]"), ("dips", "xs[i] < xs[i - 1] and xs[i] < xs[i + 1]"),
            ("rising", "xs[i - 1] < xs[i + 1]"), ("over", "xs[i] * 2 > xs[i - 1] + xs[i + 1]"),
            ("more", "xs[i] > xs[i - 1] or xs[i] > xs[i + 1]"), ("higher", "xs[i] > xs[0]"),
            ("under", "xs[i] < xs[-1]")], "o": [("at", "i"), ("list", "xs[i]"), ("gap", "xs[i] - xs[i - 1]")]}),
    Template("zip", "zip_{v[0]}", TWO, "return [{v[1]} for a, b in zip(xs, ys)]", {"v": PAIR_VALUES}),
    Template("zip_fold", "{r[0]}_of_{v[0]}", TWO, "return {r[1]}([{v[1]} for a, b in zip(xs, ys)])",
             {"v": PAIR_VALUES, "r": REDUCTIONS}),
    Template("zip_if", "{o[0]}_where_{t[0]}", TWO, """
acc = 0
for a, b in zip(xs, ys):
    if {t[1]}:
        acc += {o[1]}
return acc
""", {"t": PAIR_TESTS, "o": [("count", "1"), ("sum", "a"), ("gap", "b - a"), ("area", "a * b")]}),
    Template("common", "{o[0]}_{m[0]}", TWO, "return [x for x in xs if {m[1]}{o[1]}]", {
        "m": [("shared", "x in ys"), ("new", "x not in ys"), ("next", "x + 1 in ys"), ("minus", "-x in ys"),
              ("inside", "min(ys) < x and x < max(ys)")],
        "o": [("all", ""), ("positive", " and x > 0"), ("even", " and x % 2 == 0"), ("above", " and x > k")]}),
    Template("chunks", "chunks_{w[0]}", XS, "return [xs[i:i + {w[1]}] for i in range(0, len(xs), {w[1]})]",
             {"w": [*_WIDTHS, ("4", "4")]}),
    Template("chunk_fold", "{r[0]}_by_{w[0]}", XS, """
out = []
for i in range({s[1]}, len(xs), {w[1]}):
    out.append({r[1]}(xs[i:i + {w[1]}]))
return out
""", {"w": _WIDTHS, "r": SUMMARIES, "s": [("", "0"), ("late", "1")]}),
    Template("windows", "window_{r[0]}_{w[0]}", XS, """
out = []
for i in range(len(xs) - {w[1]} + 1):
    out.append({r[1]}(xs[i:i + {w[1]}]))
return out
""", {"w": _WIDTHS, "r": [SUMMARIES[i] for i in (0, 1, 2, 4)]}),
    Template("slices", "{h[0]}_{t[0]}", XS, "return {h[1]} + {t[1]}", {
        "h": [("tail", "xs[k:]"), ("back", "xs[::-1]"), ("odds", "xs[1::2]"), ("inner", "xs[1:-1]"),
              ("ends", "xs[-2:]")],
        "t": [("head", "xs[:k]"), ("first", "[xs[0]]"), ("evens", "xs[::2]"), ("last", "xs[-1:]"),
              ("zero", "[0, k]")]}),
    Template("pair_search", "{o[0]}_pairs_{t[0]}", XS, """
acc = {o[1]}
for i, a in enumerate(xs):
    for b in xs[i + 1:]:
        if {t[1]}:
            acc += {o[2]}
return acc
""", {"t": [*PAIR_TESTS, ("to_k", "a + b == k"), ("over_k", "a * b > k")],
        "o": [("count", "0", "1"), ("sum", "0", "a + b"), ("list", "[]", "[a]")]}),
    Template("sort_by", "order_{m[0]}_{v[0]}_{s[0]}", XS,
             "return sorted(xs, key=lambda x: {m[1]}{v[1]}){s[1]}",
             {"m": [("square", "x * x"), ("size", "abs(x - 2)"), ("rest", "x % 3"), ("half", "-(x // 2)"),
                    ("far", "abs(x - k)")],
              "v": [("", ""), ("down", ", reverse=True")], "s": [("all", ""), ("top", "[:3]"), ("late", "[1:]")]}),
    Template("sort_pick", "{s[0]}_{m[0]}_sorted", XS, """
out = sorted([{m[1]} for x in xs])
return {s[1]}
""", {"m": FEW_EXPRESSIONS, "s": [("second", "out[1]"), ("late", "out[-2]"), ("spread", "out[-1] - out[0]"),
                                  ("middle", "out[len(out) // 2]"), ("ends", "out[0] + out[-1]"),
                                  ("inner", "out[1:-1]")]}),
    Template("unique", "{o[0]}_{m[0]}", {"xs": "pool"}, """
seen = []
out = []
for x in xs:
    if {m[1]} {o[1]} seen:
        out.append(x)
    seen.append({m[1]})
return out
""", {"m": EXPRESSIONS[:1] + EXPRESSIONS[5:6] + [("pair", "x % 2"), ("rest", "x % 3"), ("near", "abs(x - 2)")],
        "o": [("fresh", "not in"), ("again", "in")]}),
    Template("last_seen", "since_{c[0]}_{m[0]}", XS, """
cur = 0
out = []
for x in xs:
    if {c[1]}:
        cur = {m[1]}
    out.append(cur)
return out
""", {"c": CONDITIONS, "m": [("plain", "x"), ("minus", "-x"), ("more", "cur + 1"), ("add", "cur + x"),
                             ("half", "x // 2")]}),
    Template("grid_rows", "{r[0]}_rows_{m[0]}", GRID, "return [{r[1]}([{m[1]} for x in row]) for row in grid]",
             {"r": REDUCTIONS, "m": EXPRESSIONS[:9]}),
    Template("grid_count", "{o[0]}_cells_{c[0]}", GRID, """
acc = 0
for row in grid:
    for x in row:
        if {c[1]}:
            acc += {o[1]}
return acc
""", {"c": CONDITIONS, "o": [("count", "1"), ("sum", "x")]}),
    Template("grid_line", "{l[0]}_{r[0]}_{m[0]}", GRID, """
out = []
for i in range(len(grid)):
    x = {l[1]}
    out.append({m[1]})
return {r[1]}
""", {"l": [("diagonal", "grid[i][i]"), ("column", "grid[i][0]"), ("last", "grid[i][-1]"),
            ("cross", "grid[i][-i - 1]")],
        "r": [("list", "out"), ("sum", "sum(out)"), ("max", "max(out)")], "m": [("plain", "x"), *FEW_CHANGES[:3]]}),
    Template("rows_if", "{o[0]}_rows_{c[0]}", GRID, """
out = []
for row in grid:
    x = {s[1]}
    if {c[1]}:
        out.append({o[1]})
return out
""", {"c": FEW_CONDITIONS, "s": [("sum", "sum(row)"), ("last", "row[-1]"), ("max", "max(row)")],
        "o": [("keep", "row"), ("list", "x"), ("first", "row[0]")]}),
]  # fmt: skip
