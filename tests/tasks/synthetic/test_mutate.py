"""One-line mutations: exactly one line changes, the result compiles and stays normalised."""

from __future__ import annotations

import ast
import random
import textwrap
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from woodshed.tasks.generators.synthetic import draw_functions
from woodshed.tasks.languages.python import (
    Mutation,
    apply_line,
    delete_body,
    function_spans,
    mutations,
    normalise,
    pick,
)
from woodshed.tasks.languages.python.kinds import WEIGHTS, changes
from woodshed.tasks.languages.python.splice import put

SAMPLE = '''
def f(xs, k, flag=True):
    """Two things - and more."""
    total = 0
    for i, x in enumerate(xs):
        if x > k and i % 2 == 0 or not x:
            total += x * (k - 1)
        elif 0 <= x < 9:
            total -= -1
    while total > 100 and flag:
        total //= max(k, 2)
    names = [f'{v + 1}' for v in xs if v in (1, 2)]
    return sorted(names)[-1] if total - (k - 2) else min(total, k)
'''

_NAMES = st.sampled_from(["a", "b", "c"])
_EXPRESSIONS = st.recursive(
    _NAMES | st.integers(0, 9).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "**"]), inner).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, st.sampled_from(["<", "==", "not in", ">="]), inner).map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})"),
        inner.map(lambda e: f"(not {e})"),
        inner.map(lambda e: f"(-{e})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, inner).map(lambda t: f"max({t[0]}, {t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"[{t[0]} for c in a if {t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"a[{t[0]}:{t[1]}]"),
    ),
    max_leaves=8,
)


def _changed(before: str, after: str) -> list[int]:
    a, b = before.split("\n"), after.split("\n")
    assert len(a) == len(b)
    return [n for n, (x, y) in enumerate(zip(a, b), 1) if x != y]


def _check(source: str, found: list[Mutation]) -> None:
    lines = source.split("\n")
    for m in found:
        assert _changed(source, m.source) == [m.line]
        assert (m.before, m.after) == (lines[m.line - 1], m.source.split("\n")[m.line - 1])
        compile(m.source, "<mutant>", "exec")
    assert len({(m.line, m.after) for m in found}) == len(found)


@settings(max_examples=50, deadline=None)
@given(_EXPRESSIONS)
@example("(not (not (a if (a if a else a) else a)))")
@example("[a for c in a if (not (a if a else a))]")
@example("((not (a if b else c)) if a else b)")
def test_property_one_line_changes_and_output_is_normalised(expression: str) -> None:
    body = f"c = 1\n    if {expression}:\n        c += {expression}\n    return {expression}\n"
    source = normalise(f"def f(a, b):\n    {body}")
    found = mutations(source)
    _check(source, found)
    for m in found:
        # The text edit means what the tree edit means: no parenthesis is missing and none is left over.
        assert normalise(m.source) == m.source
        assert ast.dump(ast.parse(m.source)) != ast.dump(ast.parse(source))


@settings(max_examples=50, deadline=None)
@given(_EXPRESSIONS)
def test_property_formatting_outside_the_changed_expression_is_kept(expression: str) -> None:
    body = f"c  =  {expression}\n    return  (c )  # kept\n"
    source = f"import os  # kept\n\nclass A:\n  def f( self,a, b ):  # kept\n    {body}"
    found = mutations(source, function="A.f", keep_format=True)
    _check(source, found)
    assert all(m.source.count("# kept") == 3 for m in found)


def test_every_kind_is_made() -> None:
    source = normalise(SAMPLE)
    found = mutations(source)
    _check(source, found)
    assert {m.kind for m in found} == set(WEIGHTS)
    lines = {(m.kind, m.after.strip()) for m in found}
    assert ("compare", "if x >= k and i % 2 == 0 or not x:") in lines
    assert ("binop", "total += x * (k + 1)") in lines
    assert ("binop", "total += x + (k - 1)") in lines
    assert ("constant", "total = 1") in lines
    assert ("boolean", "if (x > k and i % 2 == 0) and (not x):") in lines
    assert ("negate", "while not (total > 100 and flag):") in lines
    assert ("swap", "total //= max(2, k)") in lines
    assert ("call", "total //= min(k, 2)") in lines
    assert ("variable", "for i, x in enumerate(k):") in lines


def test_f_strings_docstrings_and_unbound_names_are_left_alone() -> None:
    found = mutations(SAMPLE)
    assert not any("Two things" in m.before for m in found)
    assert all("f'{v + 1}'" in m.after for m in found if "f'" in m.before)
    assert not any("enumerate(total)" not in m.after and "enumerate(names" in m.after for m in found)


def test_pick_draws_the_kind_first() -> None:
    options = [Mutation("variable", n, "", str(n), "") for n in range(90)] + [Mutation("compare", 99, "", "c", "")]
    rng = random.Random(0)
    kinds = Counter(pick(rng, options).kind for _ in range(2000))
    assert abs(kinds["compare"] / 2000 - 0.75) < 0.04
    with pytest.raises(ValueError, match="no mutation"):
        pick(rng, [])


def test_sibling_functions_of_a_module_are_exchanged() -> None:
    source = "def up(x):\n    return x + 1\n\ndef down(x):\n    return x - 1\n\ndef both(x):\n    return up(x)\n"
    assert "    return down(x)" in [m.after for m in mutations(source, function="both") if m.kind == "call"]
    with pytest.raises(KeyError, match="absent"):
        mutations(source, function="absent")


def test_delete_body_keeps_signature_docstring_and_the_rest() -> None:
    source = textwrap.dedent('''
        import os  # kept

        class A:
            @property
            def size(self):  # kept
                """How many."""
                # gone
                n = 1

                return n

            def one(self): return 1

        def tail(): "doc"; return 2
        x = 1
    ''')
    out = delete_body(source, "A.size")
    assert '"""How many."""' in out and "return n" not in out and out.count("# kept") == 2
    assert "def one(self): return 1" in out
    for name in ("A.size", "A.one", "tail"):
        space: dict[str, object] = {}
        deleted = delete_body(source, name)
        exec(deleted, space)
        assert deleted.count("raise NotImplementedError") == 1 and space["x"] == 1
    with pytest.raises(NotImplementedError):
        space["tail"]()  # type: ignore[operator]
    assert space["tail"].__doc__ == "doc"
    with pytest.raises(KeyError):
        delete_body(source, "absent")
    with pytest.raises(ValueError, match="docstring"):
        delete_body('def f():\n    """only"""\n', "f")
    assert [s.name for s in function_spans(source)] == ["A.size", "A.one", "tail"]


def test_lines_of_synthetic_functions() -> None:
    for function in draw_functions(60, 5, "train"):
        found = mutations(function.source)
        _check(function.source, found)
        assert all(normalise(m.source) == m.source for m in found)
        assert all(apply_line(m.source, m.line, m.before) == function.source for m in found)


REAL = '''
import re  # imported

def f(items, limit, *, name='x', sep=", "):
    """Doc."""
    größe = {'a':1,  "b": 0x10}  # 'quoted' and "quoted"
    if not (limit>3 and name  ==  'é' ) or len(items)<=2 :  # kept
        return  [ 'é' + i for i in items if 'ü' in i or i!='']
    total = (limit - 1)-2 * ( limit+1 )
    text = re.sub(r'\\d+',   "n", name)
    return max(
        total * 2,  # first
        größe['a'] if name not   in items else -1,
    ), text.lstrip( 'x' )
'''


def test_real_code_differs_only_in_the_changed_tokens() -> None:
    found = mutations(REAL, function="f", keep_format=True)
    _check(REAL, found)
    after = {m.after for m in found}
    assert "    if not (limit>=3 and name  ==  'é' ) or len(items)<=2 :  # kept" in after
    assert "    if not (limit>3 or name  ==  'é' ) or len(items)<=2 :  # kept" in after
    assert "    if not (limit>3 and name  !=  'é' ) or len(items)<=2 :  # kept" in after
    assert "        return  [ 'é' + i for i in items if 'ü' not in i or i!='']" in after
    assert "        größe['a'] if name in   items else -1," not in after
    assert "        größe['a'] if name in items else -1," in after
    assert "        total * 3,  # first" in after and "        total + 2,  # first" in after
    assert "    ), text.rstrip( 'x' )" in after
    assert """    text = re.sub("n",   r'\\d+', name)""" in after
    assert any(m.kind == "swap" and "total" in m.before for m in found)
    quoted = [m for m in found if "'" in m.before]
    assert quoted and all("'" in m.after for m in quoted)


@settings(max_examples=50, deadline=None)
@given(_EXPRESSIONS)
def test_property_text_and_tree_are_mutated_alike(expression: str) -> None:
    """Every spliced text parses to a tree that the changes of the tree give."""
    source = f"def f(a, b):\n    c  =  'é', {expression}  # kept\n    return c\n"
    tree = ast.parse(source)
    wanted = set()
    for change in changes(tree.body[0], tree):
        parent, name, index = change.ancestors[-1]
        put(parent, name, index, change.replacement)
        wanted.add(ast.dump(tree))
        put(parent, name, index, change.node)
    found = mutations(source, function="f", keep_format=True)
    assert {ast.dump(ast.parse(m.source)) for m in found} <= wanted
    assert all("'é'" in m.source and "# kept" in m.source for m in found)
