"""JavaScript tests with other inputs: what changes, what stays, what is recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.grading.node.alter import alter, imported, literals, other, recording
from woodshed.grading.node.syntax import parse


def body(text: str, kind: str = "numbers") -> str | None:
    return alter(text, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("assert.equal(f(2), 3);", "woodshed_seen(f(3));"),
        ("assert.deepEqual(f(2, 0), [1, 2], 'why');", "woodshed_seen(f(3, 0));"),
        ("assert(f(1.5));", "woodshed_truth(f(1.875));"),
        ("assert.ok(f(2), why(3));", "woodshed_truth(f(3));"),
        ("expect(f(2)).to.be.ok;", "woodshed_truth(f(3));"),
        ("expect(f(2)).toBeFalsy();", "woodshed_truth(f(3));"),
        ("expect(f(2)).to.eql(g(4));", "woodshed_seen(f(3), g(5));"),
        ("expect(f(2)).to.be.true;", "woodshed_seen(f(3));"),
        ("f(2).should.equal(3);", "woodshed_seen(f(3));"),
        ("assert.throws(() => f(2));", "assert.throws(() => f(3));"),
        ("expect(() => f(2)).to.throw();", "expect(() => f(3)).to.throw();"),
        ("it('x', () => assert.equal(f('1-4'), 3));", "it('x', () => woodshed_seen(f('1-5')));"),
        ("return expect(f(2)).to.equal(3);", "return woodshed_seen(f(3));"),
        ("if (x) t.equal(f(2), 1); else g();", "if (x) woodshed_seen(f(3)); else g();"),
        ("it('2', () => { t.plan(2); a[1] = f({ 3: 4 }); });", "it('2', () => { t.plan(2); a[1] = f({ 3: 5 }); });"),
    ],
)  # fmt: skip
def test_numbers(before: str, after: str) -> None:
    assert body(before) == after


def test_what_calls_hand_to_others_is_noted() -> None:
    assert body("assert.equal(decode(encode(2)), 2);") == "woodshed_seen(decode(woodshed_step(encode(3))));"
    assert body("assert.equal(make(2).get(), 2);") == "woodshed_seen(woodshed_step(make(3)).get());"


def test_shapes_are_drawn_from_a_seed() -> None:
    text = "assert.deepEqual(f('one two three', [1, 2, 3], 12), 4);"
    made = {alter(text, "shapes", str(seed)) for seed in range(30)}
    assert len(made) > 20 and made == {alter(text, "shapes", str(seed)) for seed in range(30)}
    assert all(one is None or parse(one.encode()) is not None for one in made)
    written = literals("assert.equal(f('one two', 12, 1), g);")
    assert written == {"": ["one two", 12]} and other("one two", "strings", "") == "one twp"


def test_strings() -> None:
    text = "'use strict';\nconst f = require('./lib');\ntest('title', () => { t.equal(f('abc', \"x\"), 'd'); });\n"
    assert body(text, "strings") == text.replace("t.equal(f('abc', \"x\"), 'd');", "woodshed_seen(f('abd', \"y\"));")
    assert body("g(typeof x === 'string' ? o['key'] : `a${1}b`);", "strings") is None


def test_helpers_keep_their_constants() -> None:
    text = "exports.check = (x, y) => assert.equal(f(x, 3), y);"
    assert recording(text) == "exports.check = (x, y) => woodshed_seen(f(x, 3)) && (!assert.pass || assert.pass());"
    assert recording("exports.make = (x) => f(x, 3);") is None


def test_planned_assertions_in_a_helper_are_counted() -> None:
    text = recording("exports.check = (t, x, y) => {\n  t.equal(f(x), y);\n};")
    assert text == "exports.check = (t, x, y) => {\n  woodshed_seen(f(x)) && (!t.pass || t.pass());\n};"


@pytest.mark.parametrize(
    "result", ["text.match(/a/)", "a.equals(b)", "Array.isArray(f(x))", "_.isString(x)", "g(x).include('a')"]
)
def test_a_result_that_a_test_uses_is_no_assertion(result: str) -> None:
    assert recording(f"exports.find = (x) => {result};") is None
    assert recording(f"exports.find = function (x) {{ return {result}; }};") is None


@pytest.mark.parametrize("result", ["t.ok(f(x))", "s.notOk(x)", "expect(x).to.equal(3)", "t.match(f(x), /a/)"])
def test_an_assertion_that_is_a_result_is_recorded(result: str) -> None:
    assert recording(f"exports.check = (x) => {result};") is not None


def test_imports_of_a_test_file() -> None:
    files = {"test/helpers.js", "test/more/index.mjs", "lib/f.js", "test/data.json"}
    source = (
        "const a = require('./helpers');\nimport b from '../test/more';\nimport 'chai'; require('./data.json.js');\n"
    )
    assert imported("test/f.test.js", source, files) == {"test/helpers.js", "test/more/index.mjs"}
    assert imported("test/deep/f.test.js", "await import('../../lib/f.js');", files) == {"lib/f.js"}


def test_planned_assertions_of_tape_are_counted() -> None:
    text = "const test = require('tape');\ntest('a', (t) => { t.plan(1); t.equal(f(1), 2); });\n"
    assert "woodshed_seen(f(2)) && t.pass();" in (body(text) or "")
    assert "woodshed_truth(f(2)) && t.pass();" in (body(text.replace("equal(f(1), 2)", "true(f(1))")) or "")


def test_nothing_to_change() -> None:
    assert body("assert.equal(f(x), y);") is None
    assert body("this is no javascript 1") is None


@given(
    st.lists(st.sampled_from(["f(1)", "'a'", "[2, 'b']", "{ k: 3 }", "-4", "/x/", "(y) => 5"]), min_size=1, max_size=5)
)
def test_what_is_made_can_be_read(parts: list[str]) -> None:
    source = f"describe('d', () => {{ assert.deepEqual({', '.join(parts)}); const z = [{', '.join(parts)}]; }});"
    for kind in ("numbers", "strings"):
        made = body(source, kind)
        assert made is None or (parse(made.encode()) is not None and made != source)
