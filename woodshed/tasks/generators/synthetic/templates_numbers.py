"""Templates over lists of numbers, one element at a time."""

from __future__ import annotations

from .template import CHANGES, CONDITIONS, EXPRESSIONS, FEW_CHANGES, FEW_CONDITIONS, FEW_EXPRESSIONS, Template

XS = {"xs": "ints"}
_ANSWER = [("", "i", "-1"), ("from_1", "i + 1", "0"), ("to_end", "len(xs) - i", "0")]
_KEPT = [e for e in EXPRESSIONS if e[0] != "size"]

TEMPLATES = [
    Template("fold_if", "{op[0]}_{c[0]}", XS, """
acc = {op[1]}
for x in xs:
    if {c[1]}:
        acc {op[2]} x
return acc
""", {"op": [("sum", "0", "+="), ("product", "1", "*="), ("drain", "20", "-=")], "c": CONDITIONS}),
    Template("count_if", "count_{c[0]}", XS, """
acc = 0
for x in xs:
    if {c[1]}:
        acc += 1
return acc
""", {"c": CONDITIONS}),
    Template("count_if", "how_many_{c[0]}", XS, "return len([x for x in xs if {c[1]}])", {"c": CONDITIONS}),
    Template("fold_map", "{op[0]}_{m[0]}", XS, """
acc = {op[1]}
for x in xs:
    acc {op[2]} {m[1]}
return acc
""", {"op": [("sum", "0", "+="), ("drain", "50", "-=")], "m": CHANGES}),
    Template("keep", "keep_{c[0]}_{m[0]}", XS, """
out = []
for x in xs:
    if {c[1]}:
        out.append({m[1]})
return out
""", {"c": CONDITIONS, "m": _KEPT}),
    Template("keep", "pick_{c[0]}_{m[0]}", XS, "return [{m[1]} for x in xs if {c[1]}]",
             {"c": CONDITIONS, "m": _KEPT}),
    Template("either", "{m[0]}_if_{c[0]}_{e[0]}", XS, "return [{m[1]} if {c[1]} else {e[1]} for x in xs]",
             {"c": CONDITIONS, "m": FEW_EXPRESSIONS[:4], "e": [("zero", "0"), ("next", "x + 1"), ("flip", "5 - x")]}),
    Template("either", "{m[0]}_when_{c[0]}_{e[0]}", XS, """
out = []
for x in xs:
    if {c[1]}:
        out.append({m[1]})
    else:
        out.append({e[1]})
return out
""", {"c": CONDITIONS, "m": FEW_EXPRESSIONS[:4], "e": [("zero", "0"), ("next", "x + 1"), ("flip", "5 - x")]}),
    Template("first_index", "first_{c[0]}_{e[0]}", XS, """
for i, x in enumerate(xs):
    if {c[1]}:
        return {e[1]}
return {e[2]}
""", {"c": CONDITIONS, "e": _ANSWER}),
    Template("last_index", "last_{c[0]}_{e[0]}", XS, """
acc = {e[2]}
for i, x in enumerate(xs):
    if {c[1]}:
        acc = {e[1]}
return acc
""", {"c": CONDITIONS, "e": _ANSWER}),
    Template("indices", "where_{c[0]}_{s[0]}", XS, "return [i{s[1]} for i, x in enumerate(xs) if {c[1]}]",
             {"c": CONDITIONS, "s": [("", ""), ("from_1", " + 1"), ("double", " * 2")]}),
    Template("best_by", "{r[0]}_by_{m[0]}", XS, """
best = xs[0]
for x in xs:
    if {m[1]} {r[1]} {m[2]}:
        best = x
return best
""", {"r": [("most", ">"), ("least", "<")], "m": [
        ("plain", "x", "best"), ("size", "abs(x)", "abs(best)"), ("rest", "x % 3", "best % 3"),
        ("near_3", "abs(x - 3)", "abs(best - 3)"), ("square", "x * x - x", "best * best - best"),
        ("tens", "x * x % 10", "best * best % 10")]}),
    Template("exists", "{q[0]}_{c[0]}", XS, """
for x in xs:
    if {c[1]}:
        return {q[1]}
return {q[2]}
""", {"q": [("has", "True", "False"), ("lacks", "False", "True")], "c": CONDITIONS}),
    Template("running", "running_{u[0]}", XS, """
acc = {u[1]}
out = []
for x in xs:
    acc = {u[2]}
    out.append(acc)
return out
""", {"u": [
        ("sum", "0", "acc + x"), ("max", "0", "max(acc, x)"), ("min", "9", "min(acc, x)"),
        ("floor", "0", "max(acc + x, 0)"), ("cap", "0", "min(acc + x, 10)"), ("fade", "0", "acc // 2 + x"),
        ("turn", "0", "x - acc"), ("size", "0", "acc + abs(x)"), ("left", "20", "acc - x"),
        ("shift", "0", "acc + x + k"), ("double", "1", "acc * 2 + x"), ("wheel", "0", "(acc + x) % 7")]}),
    Template("take_while", "{a[0]}_until_{c[0]}", XS, """
acc = {a[1]}
for x in xs:
    if {c[1]}:
        break
    acc += {a[2]}
return acc
""", {"a": [("sum", "0", "x"), ("count", "0", "1"), ("list", "[]", "[x]")], "c": CONDITIONS}),
    Template("drop_while", "after_{c[0]}_{s[0]}", XS, """
for i, x in enumerate(xs):
    if {c[1]}:
        return xs[{s[1]}:]
return []
""", {"c": CONDITIONS, "s": [("with", "i"), ("next", "i + 1")]}),
    Template("streak", "streak_{c[0]}", XS, """
best = 0
cur = 0
for x in xs:
    cur = cur + 1 if {c[1]} else 0
    best = max(best, cur)
return best
""", {"c": CONDITIONS}),
    Template("streak", "longest_{c[0]}", XS, """
best = cur = 0
for x in xs:
    if {c[1]}:
        cur += 1
        best = max(best, cur)
    else:
        cur = 0
return best
""", {"c": CONDITIONS}),
    Template("signs", "swing_{s[0]}_{m[0]}", XS, """
acc = 0
cur = {s[1]}
for x in xs:
    acc += cur * ({m[1]})
    cur = -cur
return acc
""", {"s": [("plus", "1"), ("minus", "-1")], "m": EXPRESSIONS[1:10]}),
    Template("weighted", "weigh_{s[0]}_{m[0]}", XS, """
acc = 0
for i, x in enumerate(xs{s[1]}):
    acc += {m[1]}
return acc
""", {"s": [("", ""), ("from_1", ", 1"), ("from_2", ", 2")], "m": [
        ("times", "i * x"), ("plus", "max(i, x)"), ("gap", "abs(x - i)"), ("rest", "x % (i + 2)"), ("low", "min(i, x)"),
        ("square", "i * i - x")]}),
    Template("clip", "clip_{a[0]}_{b[0]}", XS, "return [max({a[1]}, min(x, {b[1]})) for x in xs]",
             {"a": [("low", "-2"), ("minus", "-1"), ("0", "0"), ("1", "1"), ("2", "2")],
              "b": [(str(v), str(v)) for v in (4, 5, 6, 7)]}),
    Template("extreme_if", "{r[0]}_{m[0]}_{c[0]}", XS, "return {r[1]}([{m[1]} for x in xs if {c[1]}] + [{r[2]}])",
             {"r": [("max", "max", "-9"), ("min", "min", "30")], "m": FEW_CHANGES, "c": FEW_CONDITIONS}),
    Template("split", "{s[0]}_split_{c[0]}", XS, """
out = [x for x in xs if {c[1]}]
acc = [x for x in xs if x not in out]
return {s[1]}
""", {"s": [("join", "out + acc"), ("tilt", "sum(out) - sum(acc)"),
            ("more", "len(out) > len(acc)")], "c": CONDITIONS}),
    Template("twice", "sift_{c[0]}_{o[0]}", XS, """
acc = 0
for x in xs:
    if {c[1]}:
        acc += x
    elif {o[1]}:
        acc {o[2]}
return acc
""", {"c": [CONDITIONS[i] for i in (0, 2, 4, 7, 8, 12)], "o": [
        ("less", "x < -1", "-= 1"), ("plus", "x == 1", "+= 5"), ("odd", "x % 2 == 1", "-= x"),
        ("low", "x < k", "+= 2")]}),
]  # fmt: skip
