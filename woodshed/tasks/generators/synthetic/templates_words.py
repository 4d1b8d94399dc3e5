"""Templates over text, words, tables, and single numbers."""

from __future__ import annotations

from .template import CHANGES, FEW_EXPRESSIONS, Template

TEXT = {"text": "text"}
WORDS = {"words": "words"}
SCORES = {"table": "scores"}
_CHARS = [
    ("vowels", "ch in 'aeio'"), ("digits", "ch.isdigit()"), ("upper", "ch.isupper()"), ("lower", "ch.islower()"),
    ("x", "ch == 'x' or ch == 'X'"), ("late", "ch > 'c'"), ("no_gap", "ch != ' '"), ("early", "ch >= 'a' and ch < 'e'"),
    ("letters", "ch.isalpha()"),
]  # fmt: skip
_WORD_TESTS = [
    ("long", "len(w) > 3"), ("short", "len(w) < 4"), ("even", "len(w) % 2 == 0"), ("with_a", "'a' in w"),
    ("over", "len(w) > k"), ("exact", "len(w) == k"), ("cap", "w[0].isupper()"), ("loop", "w[0] == w[-1]"),
    ("early", "w < 'm'"), ("no_o", "'o' not in w"), ("vowel_end", "w[-1] in 'aeiou'"),
]  # fmt: skip
_PICKS = [
    ("plain", "w"),
    ("upper", "w.upper()"),
    ("len", "len(w)"),
    ("head", "w[0]"),
    ("flip", "w[::-1]"),
    ("cut", "w[1:]"),
]
_DIGITS = [
    ("all", "d >= 0"),
    ("even", "d % 2 == 0"),
    ("odd", "d % 2 == 1"),
    ("big", "d > 4"),
    ("small", "d < 6"),
    ("third", "d % 3 == 0"),
    ("not_k", "d != k"),
]
_SCORES = [
    ("positive", "x > 0"),
    ("even", "x % 2 == 0"),
    ("big", "x > 3"),
    ("above", "x > k"),
    ("low", "x <= 2"),
    ("outer", "x < 0 or x > 5"),
]

TEMPLATES = [
    Template("char_count", "count_{c[0]}", TEXT, """
acc = {s[1]}
for ch in text:
    if {c[1]}:
        acc {s[2]}
return acc
""", {"c": _CHARS, "s": [("up", "0", "+= 1"), ("down", "10", "-= 1"), ("twice", "0", "+= 2")]}),
    Template("char_map", "{m[0]}_{c[0]}", TEXT, """
out = ''
for ch in text:
    out += {m[1]} if {c[1]} else {e[1]}
return out
""", {"c": _CHARS, "m": [("mark", "'*'"), ("next", "chr(ord(ch) + 1)"), ("double", "ch * 2")], "e": [
        ("keep", "ch"), ("dash", "'-'"), ("drop", "''")]}),
    Template("char_index", "find_{c[0]}_{o[0]}", TEXT, """
out = []
for i, ch in enumerate(text{o[1]}):
    if {c[1]}:
        out.append({m[1]})
return out
""", {"c": _CHARS, "o": [("", ""), ("from_1", ", 1")], "m": [("at", "i"), ("mod", "i % 3")]}),
    Template("words_if", "{m[0]}_{t[0]}", WORDS, "return [{m[1]} for w in words if {t[1]}]",
             {"t": _WORD_TESTS, "m": _PICKS}),
    Template("words_if", "list_{m[0]}_{t[0]}", WORDS, """
out = []
for w in words:
    if {t[1]}:
        out.append({m[1]})
return out
""", {"t": _WORD_TESTS, "m": _PICKS}),
    Template("word_best", "{r[0]}_{m[0]}", WORDS, """
best = words[0]
for w in words[1:]:
    if {m[1]} {r[1]} {m[2]}:
        best = w
return best
""", {"r": [("top", ">"), ("low", "<"), ("top_late", ">="), ("low_late", "<=")], "m": [
        ("len", "len(w)", "len(best)"), ("end", "w[-1]", "best[-1]"), ("second", "w[1:2]", "best[1:2]"),
        ("vowels", "w.count('a')", "best.count('a')")]}),
    Template("word_sum", "{o[0]}_letters_{t[0]}", WORDS, """
acc = 0
for w in words:
    if {t[1]}:
        acc += {o[1]}
return acc
""", {"t": _WORD_TESTS, "o": [("all", "len(w)"), ("more", "len(w) - 1"), ("a", "w.count('a')"), ("one", "1")]}),
    Template("word_join", "join_{m[0]}_{t[0]}", WORDS, "return {s[1]}.join([{m[1]} for w in words if {t[1]}])",
             {"t": _WORD_TESTS[:8], "m": [("head", "w[:2]"), ("tail", "w[-2:]"), ("title", "w.title()"),
                                      ("one", "w[0]")],
              "s": [("dash", "'-'"), ("plain", "''")]}),
    Template("tally", "tally_{g[0]}_{v[0]}", WORDS, """
table = {{}}
for w in words:
    key = {g[1]}
    table[key] = table.get(key, 0) + {v[1]}
return table
""", {"g": [("end", "w[-1]"), ("head", "w[0].lower()"), ("cap", "str(len(w) > 3)"), ("len", "str(len(w))"),
            ("pair", "w[:2]"), ("a", "str('a' in w)")],
        "v": [("count", "1"), ("len", "len(w)"), ("more", "len(w) + 1"), ("vowels", "w.count('a')")]}),
    Template("group", "group_{g[0]}_{v[0]}", WORDS, """
table = {{}}
for w in words:
    table.setdefault({g[1]}, []).append({v[1]})
return table
""", {"g": [("end", "w[-1]"), ("head", "w[0].lower()"), ("even", "str(len(w) % 2 == 0)"), ("long", "str(len(w) >= 4)"),
            ("len", "str(len(w) - 1)")], "v": _PICKS[:5]}),
    Template("depth", "{o[0]}_depth_{b[0]}", {"text": "brackets"}, """
cur = best = 0
for ch in text:
    if ch == {b[1]}:
        cur += {s[1]}
    elif ch == {b[2]}:
        cur -= 1
    best = {o[1]}(best, cur)
return {o[2]}
""", {"b": [("round", "'('", "')'"), ("back", "')'", "'('"), ("mixed", "'['", "')'"), ("x", "'x'", "'('")],
        "o": [("max", "max", "best"), ("min", "min", "best"), ("sum", "max", "best + cur"),
              ("gap", "min", "cur - best")],
        "s": [("", "1"), ("double", "2")]}),
    Template("scores_if", "{o[0]}_score_{c[0]}", SCORES, "return {{key: {o[1]} for key, x in table.items() if {c[1]}}}",
             {"c": _SCORES, "o": FEW_EXPRESSIONS}),
    Template("score_names", "{s[0]}_names_{c[0]}", SCORES, """
out = []
for key, x in table.items():
    if {c[1]}:
        out.append({s[1]})
return out
""", {"c": _SCORES, "s": [("plain", "key"), ("double", "key * 2"), ("pair", "[key, x]"), ("upper", "key.upper()")]}),
    Template("lookup", "{o[0]}_points_{m[0]}", {"table": "scores", "text": "text"}, """
acc = 0
for ch in text:
    acc {o[1]} table.get({m[1]}, {e[1]})
return acc
""", {"o": [("sum", "+="), ("drain", "-=")], "m": [("plain", "ch"), ("lower", "ch.lower()")],
        "e": [("0", "0"), ("1", "1"), ("minus", "-1"), ("k", "k")]}),
    Template("digits", "{o[0]}_digits_{c[0]}", {"n": "number"}, """
acc = {o[1]}
while n > 0:
    d = n % 10
    if {c[1]}:
        acc += {o[2]}
    n = n // 10
return acc
""", {"o": [("sum", "0", "d"), ("count", "0", "1"), ("list", "[]", "[d]"), ("squares", "0", "d * d")], "c": _DIGITS}),
    Template("base", "base_{b[0]}_{o[0]}", {"n": "number"}, """
out = []
while n {s[1]}:
    out.append(n % {b[1]})
    n //= {b[1]}
return {o[1]}
""", {"b": [(str(v), str(v)) for v in (2, 3, 4, 5, 7, 10)], "s": [("all", "> 0"), ("top", ">= 5")],
        "o": [("back", "out"), ("list", "out[::-1]"), ("sum", "sum(out)"), ("len", "len(out)")]}),
    Template("shrink", "{o[0]}_shrink_{s[0]}", {"n": "number"}, """
acc = 0
while n > {e[1]}:
    n = {s[1]}
    acc += {o[1]}
return acc
""", {"s": [("half", "n // 2"), ("third", "n // 3"), ("even", "n // 2 if n % 2 == 0 else n - 1"),
            ("step", "n // 2 - k")],
        "e": [("1", "1"), ("2", "2"), ("5", "5")], "o": [("count", "1"), ("sum", "n"), ("rest", "n % 3")]}),
    Template("range_fold", "{o[0]}_range_{m[0]}_{s[0]}", {"n": "count"}, """
acc = 0
for x in range({s[1]}):
    acc {o[1]} {m[1]}
return acc
""", {"s": [("zero", "n"), ("one", "1, n + 1"), ("two", "2, n, 2"), ("odd", "1, n, 3")],
        "o": [("sum", "+="), ("less", "-=")],
        "m": [("plain", "x"), *CHANGES[:2], CHANGES[4], CHANGES[7], CHANGES[8]]}),
    Template("sequence", "sequence_{s[0]}_{r[0]}", {"n": "count"}, """
a, b = {s[1]}
for i in range(n):
    a, b = (b, {r[1]})
return a
""", {"s": [("01", "(0, 1)"), ("11", "(1, 1)"), ("21", "(2, 1)"), ("13", "(1, 3)"), ("32", "(3, 2)")],
        "r": [("sum", "a + b"), ("twice", "a + 2 * b"), ("gap", "a - b"), ("next", "a + b + 1"), ("count", "a + i"),
              ("wheel", "(a + b) % 7"), ("flip", "b - a + 1")]}),
    Template("grade", "grade_{a[0]}_{b[0]}_{l[0]}", {"xs": "ints"}, """
out = []
for x in xs:
    if x >= {b[1]}:
        out.append({l[1]})
    elif x >= {a[1]}:
        out.append({l[2]})
    else:
        out.append({l[3]})
return out
""", {"a": [("low", "-1"), ("0", "0"), ("1", "1"), ("2", "2")], "b": [(str(v), str(v)) for v in (4, 5, 6, 7, 8)],
        "l": [("size", "'L'", "'M'", "'S'"), ("mark", "'A'", "'B'", "'C'"), ("heat", "'hot'", "'ok'", "'cold'"),
              ("score", "3", "2", "x")]}),
    Template("fizz", "fizz_{a[0]}_{b[0]}_{o[0]}", {"xs": "ints"}, """
out = []
for x in xs:
    if x % {a[1]} == 0 {o[1]} x % {b[1]} {o[4]} {r[1]}:
        out.append({o[2]})
    else:
        out.append({o[3]})
return out
""", {"a": [("2", "2"), ("3", "3"), ("4", "4")], "b": [("3", "3"), ("5", "5")],
        "r": [("0", "0"), ("1", "1"), ("2", "2")],
        "o": [("and", "and", "x * 2", "x + 1", "!="), ("or", "or", "'fizz'", "'buzz'", "=="),
              ("none", "or", "0", "x", "=="), ("half", "and", "0", "x // 2", "!=")]}),
    Template("fee", "fee_{a[0]}_{b[0]}_{c[0]}", {"n": "count", "k": "small"}, """
acc = n * {a[1]}
if {c[1]}:
    acc -= {b[1]}
return acc
""", {"a": [("2", "2"), ("3", "3"), ("k", "k"), ("5", "5")], "b": [("1", "1"), ("3", "3"), ("n", "n"), ("k", "k + 1")],
        "c": [("long", "n > 5"), ("short", "n < 6 and k > 1"), ("even", "n % 2 == 0"), ("double", "n > k * 2"),
              ("either", "n > 8 or k > 2")]}),
]  # fmt: skip
