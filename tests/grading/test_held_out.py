"""Altered tests: which constants change, what is recorded, what stays as it is."""

from __future__ import annotations

import ast
import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading.cases_runner import encode
from woodshed.grading.heldout import EndlessError
from woodshed.grading.pytest_alter import THE_END, alter
from woodshed.grading.pytest_given import only
from woodshed.grading.results import TestResult, TestRun, _parse
from woodshed.grading.settings import GradingSettings
from woodshed.grading.telling import Known, by_heart, objection, plain, problem_of, reference_of, same, values_of
from woodshed.grading.value_runner import rounded
from woodshed.grading.verify import grade
from woodshed.tasks.validate.check import check_folders

from . import toy

HEAD = "import pytest\n\n\n"
_ELSE = "else:\n{0}    woodshed_seen('no exception')"
_NOTE = (
    "except Exception as woodshed_error:\n{0}    "
    "woodshed_seen('an expected exception' if isinstance(woodshed_error, {1}) else type(woodshed_error).__name__)"
)
NOTED = "\n    ".join((_NOTE, _ELSE)).format(" " * 4, "KeyError")
NOTED_AND_RAISED = "\n        ".join((f"{_NOTE}\n{{0}}    raise", _ELSE)).format(" " * 8, "E")


MANY = """
class Base:
    def setUp(self):
        self.x = 1

    def test_wanted(self):
        assert f(self.x)

    def test_other(self):
        assert g(self.x)


class TestMore(Base):
    def test_third(self):
        assert h(1)


class TestOthers:
    def help(self):
        pass

    def test_third(self):
        assert h(1)


def test_wanted():
    test_called_by_another()


def test_called_by_another():
    assert f(2)


def test_fixture_like():
    return 3


def test_given(test_fixture_like):
    assert f(test_fixture_like)


@pytest.mark.depends(on=["test_named_in_text"])
def helper():
    pass


def test_named_in_text():
    assert g(2)


async def test_left_out():
    assert g(3)
"""


def test_of_a_large_file_only_what_is_asked_for_is_altered() -> None:
    left = only(MANY, frozenset({"TestMore", "test_wanted"}))
    gone = ("test_other", "test_third", "def test_given", "test_left_out", "TestOthers")
    assert not [name for name in gone if name in left]
    kept = ("test_called_by_another", "test_fixture_like", "test_named_in_text", "helper", "setUp")
    assert [f"def {name}(" in left for name in kept] == [True] * 5 and left.count("def test_wanted(") == 2
    assert "class TestMore(Base):\n    pass" in left, "it inherits what is asked for"
    assert only("def test_a(:", frozenset()) == "def test_a(:", "what is no Python is left to who runs it"


def test_an_assertion_of_the_file_itself_is_called() -> None:
    altered = alter("def assert_twice(x):\n    assert f(x) == 1\n\n\ndef test_it():\n    assert_twice(3)\n", "numbers")
    assert altered is not None and "woodshed_seen(f(x))" in altered and "assert_twice(4)" in altered


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("numbers", "assert area(2, 3) == 6", "woodshed_seen(area(3, 4))"),
        ("numbers", "assert f(-1, 0, 1.0) == g(5)", "woodshed_seen(f(-2, 0, 1.25), g(6))"),
        ("numbers", "assert not f(1)", "woodshed_truth(not f(2))"),
        ("numbers", "self.assertTrue(f(1), 'why')", "woodshed_truth(f(2))"),
        ("numbers", "assert f(2) if g(2) else not h(2)", "woodshed_truth(f(3) if g(3) else not h(3))"),
        ("numbers", "assert [y for y in f(1) if g(y)] == 3", "woodshed_seen([y for y in woodshed_step(f(2)) if g(y)])"),
        ("numbers", "if f(1):\n        g(2)", "if f(2):\n        g(3)\n    woodshed_seen('the end')"),
        ("numbers", "return self.assertEqual(f(1), 2)", "return woodshed_seen(f(2))"),
        ("numbers", "self.assertEqual(f(1), 2)", "woodshed_seen(f(2))"),
        ("numbers", "assert 1 < f(1) < 9", "woodshed_seen(f(2))"),
        ("strings", "assert f('abc', 'x1') == 'c'", "woodshed_seen(f('abd', 'y1'))"),
        ("strings", "assert f('z', '%s', 'a{b}', '\\\\n', '12', 'ä') == ''",
         "woodshed_seen(f('y', '%s', 'a{b}', '\\\\n', '12', 'ä'))"),
        ("numbers", "assert f(1)[0] == {1: 1}[1]", "woodshed_seen(woodshed_step(f(2))[0])"),
        ("strings", "assert getattr(f('a'), 'name')", None),
        ("strings", "assert f('a') and getattr(x, 'name')", "woodshed_truth(f('b') and getattr(x, 'name'))"),
        ("numbers", "assert f(f'{x:10}', True, None) == 'a'", None),
        ("numbers", "assert_equal(f(1), 2)", "woodshed_seen(f(2))"),
        ("numbers", "assert f('2.3.7', '>=1', 'v1', '009') == '1.0'", "woodshed_seen(f('2.3.8', '>=2', 'v1', '008'))"),
        ("strings", "assert f('2.3.7', 'ab') == '1.0'", "woodshed_seen(f('2.3.7', 'ac'))"),
        ("some", "assert f(1, 2, 3, 4, 5, 'a', 'b', '6') == 1", "woodshed_seen(f(2, 3, 4, 4, 5, 'a', 'b', '7'))"),
        ("same", "assert f(1, 'a') == 2", "woodshed_seen(f(1, 'a'))"),
        ("numbers", "assert f(999999999, -86400, 999) == 1", "woodshed_seen(f(999999998, -86399, 998))"),
        ("strings", "assert f(float('nan'), '-inf', '1e5', 'nano') == 1",
         "woodshed_seen(f(float('nan'), '-inf', '1e5', 'nanp'))"),
        ("numbers", "assert_warns(f, 1)", "assert_warns(f, 2)\n    woodshed_seen('the end')"),
        ("numbers", "f('a')", "f('a')\n    woodshed_seen('the end')"),
        ("numbers", "assert sorted(f(1)) == [1]", "woodshed_seen(sorted(f(2)))"),
        ("numbers", "x = ','.join(f(1)).strip()\n    assert x",
         "x = woodshed_step(','.join(f(2)).strip())\n    woodshed_truth(x)"),
        ("numbers", "assert g(list(f(1))) == 1", "woodshed_seen(g(woodshed_step(list(f(2)))))"),
        ("numbers", "assert loads(dumps(1)) == 1", "woodshed_seen(loads(woodshed_step(dumps(2))))"),
        ("numbers", "self.assertRaises(KeyError, f, 1, x=2)", f"try:\n        f(2, x=3)\n    {NOTED}"),
        ("strings", "with raises(E) as e:\n        f('a')\n    assert e.value == 1",
         f"with raises(E) as e:\n        try:\n            f('b')\n        {NOTED_AND_RAISED}\n"
         "    woodshed_seen(e.value)"),
        ("strings", "with raises(E) as e:\n        f('a')\n    assert 'a' in str(e.value)",
         f"with raises(E) as e:\n        try:\n            f('b')\n        {NOTED_AND_RAISED}\n    pass"),
    ],
)  # fmt: skip
def test_assertions_become_records(kind: str, before: str, after: str | None) -> None:
    source = f"{HEAD}def test_it(self):\n    {before}\n"
    altered = alter(source, kind)  # type: ignore[arg-type]
    if after is None:
        assert altered is None
    else:
        assert altered is not None
        wanted = f"def test_it(self):\n    {after}\n"
        assert ast.dump(ast.parse(altered).body[1]) == ast.dump(ast.parse(wanted).body[0])


def test_parameters_change_and_names_of_things_do_not() -> None:
    source = HEAD + (
        "@pytest.mark.skipif(sys.version_info < (3, 12), reason='old')\n"
        "@pytest.mark.parametrize('text, number', [('ab', 1)], ids=['one'])\n"
        "def test_it(text, number):\n    'Checks 1 thing.'\n    with pytest.raises(ValueError, match='bad 1'):\n"
        "        f(number, 5)\n"
    )
    numbers, strings = alter(source, "numbers"), alter(source, "strings")
    assert numbers is not None and strings is not None
    assert "[('ab', 2)]" in numbers and "(3, 12)" in numbers and "'bad 1'" in numbers and "f(number, 6)" in numbers
    assert "[('ac', 1)]" in strings and "'text, number'" in strings and "ids=['one']" in strings
    assert "Checks 1 thing." in strings and "reason='old'" in strings and "'bad 1'" in strings


def test_what_the_test_itself_expects_is_not_noted() -> None:
    """Who returns it, read from the caller's frame, would be right half of the time."""
    source = HEAD + (
        "CASES = {'a': 1}\n\n\n@pytest.mark.parametrize('text, wanted', [('ab', 1)])\n"
        "def test_it(text, wanted):\n    assert f(text) == wanted\n    known = [1, 2]\n    assert known == g(text)\n"
        "    found = f(text)\n    assert found == wanted\n    assert wanted\n    assertEqual(f(text), CASES)\n"
        "    for case in CASES:\n        assert f(case) == case\n"
    )
    altered = alter(source, "strings")
    assert altered is not None
    noted = [line.strip() for line in altered.split("\n") if line.strip().startswith("woodshed_")]
    calls = ["seen(f(text))", "seen(g(text))", "seen(found)", "truth(wanted)", "seen(f(text))", "seen(f(case))"]
    assert noted == [f"woodshed_{call}" for call in calls]


@pytest.mark.parametrize(
    ("body", "recorded"),
    [
        ("assert f([2, 3]) == prod([2, 3])", "f([2, 3])"),
        ("words = ['b', 'a']\n    assert f(words) == sorted(words)", "f(words)"),
        ("for n in (1, 2):\n        assert f(n) == str(n) + json.dumps([n])", "f(n)"),
        ("assert f(1) == [len(x) for x in 'ab']", "f(1)"),
        ("assert f(1) == g(2)", "f(1), g(2)"),
        ("found = f(1)\n    assert sorted(found) == sorted([2])", "sorted(found)"),
        ("assert sorted(client.get('/')) == f(1)", "sorted(client.get('/')), f(1)"),
        ("assert f(1) == str(sum)", "f(1), str(sum)"),
        ("assert open('out').read() == f(1)", "open('out').read(), f(1)"),
        ("assert len([2]) == max([1])", "len([2]), max([1])"),
        ("out = []\n    f(out)\n    assert sorted(out) == g(1)", "sorted(out), g(1)"),
        ("rows = [2]\n    for row in rows:\n        assert str(row) == g(row)\n    rows = f(1)", "str(row), g(row)"),
        ("known = f(1)\n    assert sorted(known) == g(1)", "sorted(known), g(1)"),
        ("assert sorted(known) == g(1)", "g(1)"),
        ("rows = f(1)\n    for row in rows:\n        assert len(row) == g(row)", "len(row), g(row)"),
        ("with f(1) as x:\n        assert str(x) == g(1)", "str(x), g(1)"),
        ("x = [2]\n    match f(1):\n        case [*x]:\n            assert str(x) == g(1)", "str(x), g(1)"),
        ("assert all(x for x in f(1)) == all(x for x in [1])", "all((x for x in (f(1))))"),
    ],
)
def test_what_python_alone_computes_from_constants_is_not_recorded(body: str, recorded: str) -> None:
    """Any submission has it: a table of answers would be right about half of such tests."""
    head = "import json\nfrom math import prod\n\nknown = [3, 1]\n\n\ndef sum(x):\n    return x\n\n\n"
    source = f"{head}def test_it(client):\n    {body}\n"
    altered = alter(source, "same")
    assert altered is not None and altered.replace("woodshed_step", "").count(f"woodshed_seen({recorded})") == 1, (
        altered
    )


MATCH = "match f(1):\n    case {**all}:\n        pass"


@pytest.mark.parametrize(
    "line", ["from funcy import all", "from funcy import *", "import funcy as all", "all = f(1)", MATCH]
)
def test_a_name_of_python_that_a_file_binds_itself_may_be_under_test(line: str) -> None:
    body = "def test_it():\n    assert all([2]) == g(1)\n"
    assert "woodshed_seen(g(1))" in (alter(body, "same") or "")
    assert "woodshed_seen(all([2]), g(1))" in (alter(f"{line}\n\n\n{body}", "same") or "")


def test_what_cannot_be_altered() -> None:
    assert alter("def (", "numbers") is None
    assert alter("import a\n\n\ndef test_it():\n    assert a.f(a.x) == a.y\n", "numbers") is None


def test_the_last_bit_of_a_float_does_not_matter() -> None:
    assert rounded("[f0.30000000000000004,f1e-20]") == rounded("[f0.3,f1.00000000000000001e-20]")
    assert rounded("f0.3") != rounded("f0.31") and rounded('"f 1"') == '"f 1"'
    assert rounded("finf") == "finf"
    assert rounded('"of. f.. f1.2.3"') == '"of. f.. f1.2.3"'  # texts are whatever a submission likes


@pytest.mark.parametrize(
    "frame", ["[]", "1", "{", "{}", '{"test": "a"}', '{"test": "a", "status": 1, "seconds": "x"}', '{"end": "x"}',
              '{"end": 0}', '{"collect": 1}', '{"test": "a", "status": "passed", "seconds": 0, "seen": 1}'],
)  # fmt: skip
def test_a_malformed_frame_ends_the_reading(frame: str) -> None:
    good = 'NONCE {"test": "t", "status": "passed", "seconds": 0.1}\n'
    results, end, problems = _parse(f'{good}NONCE {frame}\nNONCE {{"end": 0, "collected": 1}}\n'.encode(), "NONCE")
    assert set(results) == {"t"} and end is None and problems == ["malformed result"]


def test_coming_to_the_end_is_no_comparison() -> None:
    def values(*seen: str) -> int:
        noted = values_of(TestRun({"t.py::t": TestResult("passed", seen=list(seen))}, True))
        return len(plain(reference_of(noted, noted, Known()).telling))

    assert not values() and not values("?", encode(THE_END))
    assert values("?", encode("ValueError")) == 1 and values(encode(None)) == 1


def test_what_anybody_may_know_tells_nothing() -> None:
    """Neither what the given files answer, nor what the visible test has at the same place."""
    t, u, w, v = (
        f"a_with_other_{kind}.py::t[{n}]"
        for kind, n in (("numbers", "2"), ("numbers", "3"), ("some", "2"), ("strings", "x"))
    )
    first = {t: ["1", "2", "3"], u: ["4"], w: ["5", "6"], v: ["7"]}
    given = {t: ["1", "0"], u: ["4"]}
    visible = {"a_with_same.py::t[1]": ["9", "8", "3"], "a_with_same.py::t[2]": ["4"]}
    found = reference_of(first, {**first, v: ["8"]}, Known(given, visible))
    assert found.values == {**first, v: [None]}
    assert found.telling == {t: [None, "2", None], u: [None], w: ["5", "6"], v: [None]}
    assert objection(found, {**first, t: ["1", "0", "3"], w: ["9"]}, 0.4) == (
        "3 of 3 values differ from the solution's where tests have other inputs, "
        "that neither the given files nor the visible tests have"
    )


def test_who_knows_only_the_public_inputs_is_not_believed_under_a_key() -> None:
    """Nine tenths of the values are on inputs that are the same in every run."""
    public = {f"a_with_other_numbers.py::t{n}": [f'"{n}"'] for n in range(40)}
    secret = {f"a_with_other_shapes.py::s{n}": [f'"s{n}"'] for n in range(4)}
    found = reference_of({**public, **secret}, {**public, **secret}, Known())
    wrong = {test: ["0"] for test in secret}
    assert not objection(found, {**public, **wrong}, 0.9)
    assert "4 of 4 values differ" in objection(found, {**public, **wrong}, 0.9, keyed=True)
    half = dict([*secret.items()][:2])
    assert not objection(found, {**public, **wrong, **half}, 0.9, keyed=True), "a right solution may differ a little"
    few = reference_of({**public, **half}, {**public, **half}, Known())
    assert not objection(few, {**public, **wrong}, 0.9, keyed=True), "of two values nothing is asked"


def test_every_test_and_every_kind_of_answer_needs_right_values() -> None:
    """A table of the visible answers with ``None`` for other inputs is right about nearly all of them."""
    most = {f"a_with_other_numbers.py::most[{n}]": [f'"{n}"'] for n in range(40)}
    few = {f"a_with_other_numbers.py::few[{n}]": [f'"x{n}"'] for n in range(4)}
    nothing = {f"a_with_other_numbers.py::few[no {n}]": ["null"] for n in range(30)}
    found = reference_of({**most, **few, **nothing}, {**most, **few, **nothing}, Known())
    wrong = {test: ["null"] for test in few}
    assert not objection(found, {**most, **wrong, **nothing}, 0.9)
    assert "4 of 4 values of a.py::few differ" in by_heart(found, {**most, **wrong, **nothing}, 0.9)
    assert "30 of 30 values of a.py::few differ" in by_heart(found, {**most, **few}, 0.9)
    half = dict([*few.items()][:2])
    assert not by_heart(found, {**most, **wrong, **half, **dict([*nothing.items()][:1])}, 0.9)
    small = {f"a_with_other_numbers.py::small{n}[0]": [f'"y{n}"'] for n in range(3)}
    two, three = ({**most, **dict([*small.items()][:n])} for n in (2, 3))
    assert not by_heart(reference_of(two, two, Known()), most, 0.9), "a right solution may differ in one or two"
    assert "3 of 3 values of small tests differ" in by_heart(reference_of(three, three, Known()), most, 0.9)


def test_one_constant_on_all_other_inputs_tells_nothing() -> None:
    nothing = {f"a_with_other_numbers.py::t[{n}]": ["null"] for n in range(30)}
    assert "one constant" in problem_of(reference_of(nothing, nothing, Known()))
    some = {**nothing, "a_with_other_numbers.py::t[31]": ["true"]}
    assert not problem_of(reference_of(some, some, Known()))


@pytest.mark.parametrize(("usual", "problem"), [(8, True), (7, False)])
def test_one_value_nearly_everywhere_tells_nothing(usual: int, problem: bool) -> None:
    values = {f"a_with_other_numbers.py::t[{n}]": ["-1" if n < usual else str(n)] for n in range(10)}
    assert ("one constant" in problem_of(reference_of(values, values, Known()))) == problem


def test_of_two_values_one_is_not_enough() -> None:
    """One of two functions is repaired, the other is always "odd" where it should be one of both, or True."""
    most = {f"a_with_other_numbers.py::most[{n}]": [f'"{n}"'] for n in range(140)}
    few = {f"a_with_other_numbers.py::few[{n}]": ['"even"' if n < 4 else '"odd"'] for n in range(10)}
    most |= {f"a_with_other_numbers.py::few[yes {n}]": ["true"] for n in range(7)}
    found = reference_of({**most, **few}, {**most, **few}, Known())
    constant = {**most, **{test: ['"odd"'] for test in few}}
    assert not objection(found, constant, 0.9)
    assert "4 of 4 values of a.py::few differ" in by_heart(found, constant, 0.9)
    constant = {**most, **{test: ['"even"'] for test in few}}
    assert "6 of 6 values of a.py::few differ" in by_heart(found, constant, 0.9)
    assert not by_heart(found, {**most, **few, "a_with_other_numbers.py::few[0]": ['"odd"']}, 0.9)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("f0", "f1e-17", True),
        ("f0", rounded("f-0.0"), True),
        ("f1", "f1.0000001", True),
        ("f1", "f1.00001", False),
        ("f1700000000.5", "f1700003000.5", False),
        ("[f1,2]", "[1,f2]", True),
        ("1", "2", False),
        ("true", "1", True),
        ("finf", "f1", False),
        ("fnan", "fnan", True),
        ('"f1"', '"f2"', False),
        ("<V2 {x=1}>", "<V3 {x=1}>", False),
        ("true", "true=match (0, 3) ()", True),
        ("false", "false=null", True),
        ("true", "false=[]", False),
        ("true", '"true=1"', False),
        ("true=[f1,2]", "true=[1,2]", True),
        ("true=[1,2]", "true=[1,3]", False),
        ("[1,2]", "true=[1,2]", True),
        ('"a\\"1"', '"a\\"2"', False),
    ],
)
def test_numbers_are_compared_by_value(one: str, other: str, equal: bool) -> None:
    assert same(one, other) == equal and same(other, one) == equal


def test_one_visible_answer_is_not_enough_where_the_given_code_is_nearly_right(tmp_path: Path, in_boxes: Any) -> None:
    """Of forty other inputs it is wrong for two: who answers the visible inputs by heart is right about the rest."""
    nearly = toy.SHAPES.replace("return width + height", "return width * height if width != 9 else width + height")
    many = "".join(f"    assert area({i}, 2) == {2 * i}\n" for i in (*range(10, 29), 9, 8))
    tests = toy.TESTS.replace("    assert area(2, 3) == 6\n", many).replace("area(10, 7) == 70", "area(9, 7) == 63")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=nearly, tests=tests)
        honest = await grade(task, task.solution_files(), backend, layers)
        assert honest.resolved, honest.detail
        by_heart = nearly.replace(
            "    return width",
            "    if (width, height) in ((9, 2), (9, 7)):\n        return {2: 18, 7: 63}[height]\n    return width",
        )
        cheat = await grade(task, {"shapes/measure.py": by_heart.encode()}, backend, layers)
        assert cheat.tests == dict.fromkeys(task.info.fail_to_pass, "failed") | dict.fromkeys(
            task.info.pass_to_pass, "passed"
        )
        assert "neither the given files nor the visible tests" in cheat.detail

    in_boxes(run)


def test_a_solution_whose_run_is_cut_short_has_nobody_believed(tmp_path: Path, in_boxes: Any) -> None:
    """Its process dies on other inputs, as where memory runs out: an infrastructure error, and not a reward."""
    end = "    if width == 3:\n        import os\n        os._exit(9)\n"
    dying = toy.SHAPES.replace("    return width + height", f"{end}    return width + height")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=dying)
        with pytest.raises(EndlessError, match="do not end on other inputs"):
            await grade(task, task.solution_files(), backend, layers)
        unasked = await grade(task, task.solution_files(), backend, layers, settings=GradingSettings(held_out_share=0))
        assert unasked.resolved

    in_boxes(run)


def test_a_value_of_the_clock_fails_nobody(tmp_path: Path, in_boxes: Any) -> None:
    """It is the same in two runs of the solution, kept for later ones, and another when the next submission runs."""
    clock = "import time\n\n\ndef window(seconds):\n    return int(time.time()) // seconds\n"
    tests = toy.TESTS.replace("area, double", "area, double, window")
    tests = tests.replace("def test_area():\n", "def test_area():\n    assert window(3) > 5\n")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=f"{clock}\n\n{toy.SHAPES}", tests=tests)
        fixed = task.solution_files()
        text = fixed["shapes/measure.py"].decode()
        known = text.replace("return width * height", "return {2: 6, 10: 70, 1: 1}[width]")
        assert known != text
        first = await grade(task, fixed, backend, layers)
        now = int(time.time()) // 4
        while int(time.time()) // 4 == now:  # altered, the test asks for windows of four seconds
            await asyncio.sleep(0.05)
        later = await grade(task, fixed, backend, layers)
        assert first.resolved and later.resolved, later.detail
        cheat = await grade(task, {"shapes/measure.py": known.encode()}, backend, layers)
        assert not cheat.resolved and "other inputs" in cheat.detail

    in_boxes(run)


def test_a_task_must_tell_a_fix_from_a_guess(tmp_path: Path, in_boxes: Any) -> None:
    """The ``guess`` gate of ``woodshed tasks check``, and exploits tried on what passes."""
    lucky = toy.SHAPES.replace("return width + height", "return width + height if width in (2, 10) else width * height")

    async def run(backend: Any, layers: Any) -> None:
        layer = toy.pytest_layer(layers)
        toy.toy_task(tmp_path / "good", layer)
        toy.toy_task(tmp_path / "lucky", layer, shapes=lucky)
        verdicts = await check_folders([tmp_path], backend, layers, exploits=2)
        good, right = verdicts
        assert good.passed and not good.unchecked, str(good)
        assert "right already" in right.failures["guess"], str(right)

    in_boxes(run)


def test_an_input_is_known_in_any_type_of_number() -> None:
    t = "a_with_other_numbers.py::t"
    values = ["f3", "[f1,2]", "f2.5", "f0", "4", '"f2"']
    inputs = frozenset(["3", "[1,f2.0]", "f2.500000001", "f1e-17", '"f1"', "5"])
    found = reference_of({t: values}, {t: values}, Known(inputs={t: inputs}))
    assert found.telling == {t: [None, None, None, None, "4", '"f2"']}


def test_a_truth_value_is_not_known_from_an_input_that_is_a_number() -> None:
    t = "a_with_other_numbers.py::t"
    inputs = frozenset(["0", "1", "f1"])
    assert reference_of({t: ["true", "1"]}, {t: ["true", "1"]}, Known(inputs={t: inputs})).telling == {
        t: ["true", None]
    }
