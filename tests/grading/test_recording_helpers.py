"""Tests that compare through a helper of another file, and tests of predicates: neither is paid by heart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.attacks.exploits import by_heart, run_battery
from woodshed.attacks.exploits.base import Exploit
from woodshed.attacks.exploits.catalogue import HONEST_FIX
from woodshed.grading.altered import recording_helpers
from woodshed.grading.heldout import PYTEST
from woodshed.grading.other_constants import SAME
from woodshed.grading.pytest_alter import alter, asserting, recording
from woodshed.grading.pytest_given import imported
from woodshed.grading.telling import Known, Reference, objection, plain, problem_of, reference_of
from woodshed.grading.telling import by_heart as by_heart_objection
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.tasks.validate.check import check_folders
from woodshed.tasks.validate.guessing import guessable, left_of

from . import toy

EXPLOITS_BY_HEART = [e for e in vars(by_heart).values() if isinstance(e, Exploit)]
BODY = """
def test_area():
    {0}(2, 3, 6)
    {0}(4, 3, 12)


def test_long_area():
    {0}(10, 7, 70)
    {0}(1, 1, 1)


def test_double():
    assert 2 * 2 == 4
"""
CLASS = """import unittest

from shapes.measure import area


class Shared(unittest.TestCase):
    def t(self, width, height, expected):
        return self.assertEqual(area(width, height), expected)
"""
FUNCTION = "from shapes.measure import area\n\n\ndef check(x, y, expected):\n    assert area(x, y) == expected\n"
FIXTURE = "import pytest\n\n\n@pytest.fixture\ndef check():\n    from shapes.measure import area\n\n" + (
    "    def compared(x, y, expected):\n        assert area(x, y) == expected\n\n    return compared\n"
)
WAYS = {
    "function": ({"tests/checks.py": FUNCTION}, "from checks import check\n\n" + BODY.format("check")),
    "through another": (
        {"tests/checks.py": "from more_checks import check\n", "tests/more_checks.py": FUNCTION},
        "from checks import check\n\n" + BODY.format("check"),
    ),
    "fixture": ({"conftest.py": FIXTURE}, BODY.format("check").replace("area()", "area(check)")),
    "assertion": (
        {"tests/checks.py": FUNCTION.replace("check", "assert_area")},
        "from checks import assert_area\n\n" + BODY.format("assert_area"),
    ),
    "method": (
        {"tests/shared.py": CLASS},
        "from shared import Shared\n\n\ndef check(*values):\n    Shared().t(*values)\n\n" + BODY.format("check"),
    ),
}


def task_of(path: Path, layers: Any, way: str) -> Task:
    helpers, tests = WAYS[way]
    extra = {name: text.encode() for name, text in helpers.items()}
    task = toy.toy_task(path, toy.pytest_layer(layers), extra, tests=tests)
    for name, data in extra.items():
        place = task.path / "tests" / "workspace" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return Task.load(path)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_helper_compares_is_recorded(tmp_path: Path, in_boxes: Any, way: str) -> None:
    """An altered test goes on after a comparison in a helper, so values tell a fix from a table of answers."""

    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path / "task", layers, way)
        (verdict,) = await check_folders([task.path], backend, layers)
        assert verdict.passed, str(verdict)
        attempts = await run_battery([task], backend, layers, exploits=[HONEST_FIX, *EXPLOITS_BY_HEART])
        verdicts = {a.exploit: a.verdict for a in attempts}
        assert verdicts == {HONEST_FIX.name: "rewarded"} | {e.name: "rejected" for e in EXPLOITS_BY_HEART}
        assert all("other inputs" in a.detail for a in attempts[1:]), "they pass every visible test"

    in_boxes(run)


def test_helpers_are_the_files_that_a_failing_test_imports(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, "through another")
        assert list(recording_helpers(task, PYTEST)) == ["tests/more_checks.py"], "the other one asserts nothing"
        (task.path / "tests/workspace/tests/test_more.py").write_text("from test_measure import check\n" + FUNCTION)
        failing = replace(task.info, fail_to_pass=(*task.info.fail_to_pass, "tests/test_more.py::test_area"))
        (task.path / "tests/workspace/tests/more_checks.py").write_text("from test_more import check\n")
        task = replace(Task.load(tmp_path), info=failing)
        helpers = ["tests/test_measure.py", "tests/test_more.py"]
        assert list(recording_helpers(task, PYTEST)) == helpers, "files with failing tests may import each other"

    in_boxes(run)


def test_imports_of_a_test_file() -> None:
    tests = {f"tests/{name}" for name in ("__init__.py", "base.py", "data.json", "test_other.py")}
    files = tests | {"tests/unit/__init__.py", "tests/unit/conftest.py", "conftest.py", "other/conftest.py"}
    files.add("pkg/testing/__init__.py")
    roots = {"conftest.py", "tests/unit/conftest.py"}
    for source, found in (
        ("import os", set[str]()),
        ("from ..base import Base", {"tests/base.py", "tests/__init__.py", "tests/unit/__init__.py"}),
        ("from tests.base import Base", {"tests/base.py", "tests/__init__.py"}),
        ("pytest_plugins = ('tests.base',)", {"tests/base.py", "tests/__init__.py"}),
        ("from pkg import testing", {"pkg/testing/__init__.py"}),
        ("import pkg.testing as t", {"pkg/testing/__init__.py"}),
        ("from . import test_other", {"tests/test_other.py", "tests/__init__.py", "tests/unit/__init__.py"}),
        ("import (", set[str]()),
    ):
        assert imported("tests/unit/test_a.py", source, files) == roots | found, source


def test_a_helper_keeps_its_constants() -> None:
    text = recording("def check(x):\n    return self.assertEqual(f(x, 3), 5)\n")
    assert text == "def check(x):\n    return woodshed_seen(f(x, 3))"
    assert recording("def make():\n    return f(1)\n") is None and recording("def (") is None


HELPER = """class Base(TestCase):
    def assertTree(self, text, expected):
        self.assertEqual(parse(text), expected)

    def assertIn(self, a, b):
        assert a in b

    def assertMade(self, text):
        make(text)

def assert_tree(text):
    assert parse(text)
"""


def test_assertion_functions_of_a_helper_are_called() -> None:
    names = asserting(HELPER)
    assert names == {"assertTree", "assert_tree"}, "the others have no record, or are those of unittest"
    test = "def test_a():\n    self.assertTree('a', 2)\n    assert_tree('a')\n    self.assertEqual(g(1), 2)\n"
    assert alter(test, "numbers", "", names) == (
        "def test_a():\n    self.assertTree('a', 3)\n    assert_tree('a')\n    woodshed_seen(g(2))"
    )
    replaced = "def assertEqual(self, a, b):\n    super().assertEqual(a, g(b))"
    assert recording(replaced) == "def assertEqual(self, a, b):\n    woodshed_seen(g(b))"
    more = "def assertTwo(self):\n    self.assertTree('a', 2)\n    assert x"
    assert "self.assertTree('a', 2)" in (recording(more, names) or "")


@pytest.mark.parametrize(
    ("statement", "record"),
    [
        ("self.assertEqual(first=f(1), second=2, msg='a')", "woodshed_seen(f(1))"),
        ("self.assertTrue(expr=f(1), msg=why(2))", "woodshed_truth(f(1))"),
        ("case.assertEqual(f(1), 2)", "woodshed_seen(f(1))"),
        ("super().assertEqual(f(1), 2)", "woodshed_seen(f(1))"),
        ("mock.assert_called_with(1)", "mock.assert_called_with(1)"),
        ("assert bool(f(1))", "woodshed_truth(bool(f(1)))"),
        ("assert not bool(f(1)), 'why'", "woodshed_truth(not bool(f(1)))"),
        ("self.assertFalse(bool(f(1)))", "woodshed_truth(bool(f(1)))"),
        ("assert bool(f(1)) is True", "woodshed_seen(bool(f(1)))"),
        ("assert all(f(x) for x in X)", "woodshed_truth(all((woodshed_step(bool(f(x))) for x in X)))"),
        ("assert not any([f(x) for x in X])", "woodshed_truth(not any([woodshed_step(bool(f(x))) for x in X]))"),
        ("assert all(f(x) == x for x in X)", "woodshed_truth(all((woodshed_step(f(x)) == x for x in X)))"),
        ("assert every(f(x) for x in X)", "woodshed_truth(every((woodshed_step(f(x)) for x in X)))"),
    ],
)
def test_forms_of_assertions(statement: str, record: str) -> None:
    assert alter(f"def check():\n    {statement}\n", SAME) == f"def check():\n    {record}"


def test_a_helper_with_an_expression_too_deep_to_alter_stays_as_it_is() -> None:
    deep = f"from checks import check\n\n\nTEXT = {' + '.join(['x'] * 2000)}\n"
    assert recording(deep + "assert TEXT\n") is None
    assert imported("tests/test_a.py", deep, {"tests/checks.py"}) == {"tests/checks.py"}


def answers_of(values: list[str]) -> dict[str, list[str]]:
    return {f"a_with_other_numbers.py::t[{n}]": [value] for n, value in enumerate(values)}


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        (["true"] * 3 + ["false"] * 3, True),
        (["true"] * 5 + ["false"] * 2, False),
        (["true"] * 6, False),
        (["null"] * 3 + ["false"] * 3 + ["true"], True),
    ],
)
def test_a_predicate_is_told_from_constants_by_enough_of_both_answers(values: list[str], kept: bool) -> None:
    """Each value is some constant's; grading refuses a constant where three of each are asked for (``by_heart``)."""
    answers = answers_of(values)
    found = reference_of(answers, answers, Known())
    constants = [answers_of([constant] * len(values)) for constant in ("true", "false", "null")]
    left = left_of(found, constants, [])
    assert bool(plain(left.telling)) == kept and bool(problem_of(left)) != kept


TWO = """from math import prod

import pytest

from shapes.measure import area, double


def slowly(width, height):
    return sum(width for _ in range(height))


def test_area():
    assert area(2, 3) == prod([2, 3])
    assert area(4, 9) == pytest.approx(36.0)
    assert area(7, 5) == slowly(7, 5)


def test_long_area():
{0}

def test_double():
    assert 2 * 2 == 4
"""


def test_what_the_test_computes_itself_is_no_answer(tmp_path: Path, in_boxes: Any) -> None:
    """One of two functions is repaired, the other has the visible answers by heart, which are few of all values."""
    tests = TWO.format("".join(f"    assert double({n}) == {2 * n}\n" for n in range(5, 75)))
    given = toy.SHAPES.replace("return 2 * value", "return value")
    given = given.replace("return width + height", "raise NotImplementedError")
    fixed = toy.SHAPES.replace("width + height", "width * height")
    table = toy.SHAPES.replace("return width + height", "return {2: 6, 4: 36, 7: 35}.get(width, 0)")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=given, tests=tests, fixed=fixed)
        (verdict,) = await check_folders([task.path], backend, layers)
        assert verdict.passed, str(verdict)
        honest = await grade(task, task.solution_files(), backend, layers)
        assert honest.resolved, honest.detail
        fake = await grade(task, {"shapes/measure.py": table.encode()}, backend, layers)
        assert not fake.resolved and "other inputs" in fake.detail

    in_boxes(run)


PURE = """import pytest
from functools import lru_cache
from pathlib import Path, PurePath
from pytest import approx
from shapes import measure
from shapes.measure import area

UNIT = 2


@lru_cache
def slowly(width: int, height: int) -> int:
    if not isinstance(height, int):
        raise TypeError(height)
    return width * height * UNIT if height < 2 else width + again(width, height - 1)


def again(width, height):
    return slowly(width, height)


def through(width, height):
    return measure.area(width, height)


def of_through(width):
    return through(width, 1)


def imports(width):
    import shapes.measure as code
    return code.area(width, 1)


@pytest.fixture
def made():
    return 3


class Cases:
    def method(self):
        return 3


@pytest.mark.parametrize("text, number", [("a b", 1), pytest.param("c", 2)])
@pytest.mark.parametrize("seen", ["a"], indirect=True)
@pytest.mark.parametrize("computed", [area(1, 1)])
def test_it(made, width, text, number, seen, computed):
    local = measure.area
    assert area(2, 3) == VALUE
"""


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("pytest.approx(6.5)", True),
        ("approx([1.5, UNIT])", True),
        ("[pytest.approx(x, abs=1e-3) for x in (1, 2)]", True),
        ("slowly(2, 3)", True),
        ("again(2, 3)", True),
        ("pytest.approx(slowly(2, 3))", True),
        ("pytest.approx(area(3, 2))", False),
        ("pytest.importorskip('shapes')", False),
        ("through(2, 3)", False),
        ("of_through(2)", False),
        ("imports(2)", False),
        ("made()", False),
        ("method(2)", False),
        ("local(2, 3)", False),
        ("width(2)", False),
        ("text.split()[number]", True),
        ("seen.upper()", False),
        ("computed.real", False),
        ("Path('a') / PurePath('b').name", True),
        ("Path('a').read_text()", False),
        ("slowly(area(2, 3), 1)", False),
    ],
)
def test_what_the_code_has_no_part_in_is_not_recorded(value: str, given: bool) -> None:
    altered = alter(PURE.replace("VALUE", value), SAME)
    assert altered is not None
    assert ("woodshed_seen(area(2, 3))" in altered) == given, altered


@pytest.mark.parametrize(
    "more", ["again = print\n", "def slowly(x):\n    return area(x, x)\n", "from shapes import *\n"]
)
def test_a_name_that_a_file_binds_twice_is_not_known(more: str) -> None:
    altered = alter(PURE.replace("VALUE", "slowly(2, 3)") + more, SAME)
    assert altered is not None and "woodshed_seen(area(2, 3))" not in altered


PREDICATE = """def area(width, height):
    \"\"\"Whether one side is a multiple of the other.\"\"\"
    {0}
"""
ASKS = """from shapes.measure import area


def test_area():
    assert area(6, 3)
    assert area(14, 7)
    assert not area(15, 7)
    assert not area(14, 5)


def test_long_area():
    for width, height in [(12, 4), (30, 15), (77, 11), (12, 5), (31, 15), (78, 11)]:
        assert area(width, height) if width in (12, 30, 77) and height != 5 else not area(width, height)


def test_double():
    assert 2 * 2 == 4
"""


@pytest.mark.parametrize(
    ("body", "resolved"),
    [
        ("return max(width, height) % min(width, height) == 0", True),
        ("return [width] if not max(width, height) % min(width, height) else None", True),
        ("return [] if max(width, height) % min(width, height) else {1: height}", True),
        ("return [width]", False),
    ],
)
def test_any_true_value_is_right_where_a_test_asks_for_no_more(
    tmp_path: Path, in_boxes: Any, body: str, resolved: bool
) -> None:
    async def run(backend: Any, layers: Any) -> None:
        fixed = PREDICATE.format("return max(width, height) % min(width, height) == 0")
        given = PREDICATE.format("raise NotImplementedError")
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=given, tests=ASKS, fixed=fixed)
        outcome = await grade(task, {"shapes/measure.py": PREDICATE.format(body).encode()}, backend, layers)
        assert outcome.resolved == resolved, outcome.detail

    in_boxes(run)


def test_of_other_values_a_constant_leaves_nothing() -> None:
    answers = answers_of(['"a"', '"a"', "true", "true", "true", "false", "false", "false"])
    found = reference_of(answers, answers, Known())
    argument = answers_of(['"a"'] * 8)
    left: Reference = left_of(found, [argument], [])
    assert plain(left.telling) == ["true"] * 3 + ["false"] * 3
    assert not plain(left_of(found, [argument], [answers]).telling), "answers by heart leave nothing at all"


def test_a_true_value_tells_nothing_where_a_test_only_asked_for_its_truth() -> None:
    """The answer True is right there, so only a change of truth tells a fix from it."""
    test = "a_with_other_numbers.py::t"
    visible = {"a_with_same.py::t": ["true=[1]", "true", "true=[1]", "true=[1]", "[1]"]}
    found = reference_of(answers := {test: ["true=[2]", "true=[2]", "false=null", "false=[]", "[2]"]}, answers, Known())
    assert found.telling == answers
    found = reference_of(answers, answers, Known(visible=visible))
    assert found.telling == {test: [None, None, "false=null", "false=[]", "[2]"]}
    assert guessable(left_of(found, [{test: ["false"] * 5}], []), {"f": ["a.py::t"]}) == ()
    of_truth = reference_of(asked := {test: ["false=null"] * 3 + ["false=[]"] * 3}, asked, Known())
    assert problem_of(of_truth), "False is right everywhere"
    assert not plain(left_of(of_truth, [{test: ["false"] * 6}], []).telling)


def test_a_predicate_that_tests_ask_for_its_opposite_too_is_not_told_from_that_constant() -> None:
    """``assert not f(x)`` and ``assert f(y) is False``: always True gives False and True."""
    answers = answers_of(["false"] * 4 + ["true"] * 4)
    found = reference_of(answers, answers, Known())
    constants = [answers, answers_of(["true"] * 4 + ["false"] * 4)]
    left = left_of(found, constants, [])
    assert guessable(left, {"f": ["a.py::t"]}) == ("f",)
    assert guessable(left_of(found, constants[1:], []), {"f": ["a.py::t"]}) == ()


@pytest.mark.parametrize("keyed", [False, True])
def test_a_predicate_is_told_from_a_constant_that_knows_the_public_inputs(keyed: bool) -> None:
    public = {f"a_with_other_numbers.py::t[{n}]": ["true" if n % 2 else "false"] for n in range(40)}
    secret = {f"a_with_other_shapes.py::t[{n}]": ["true" if n < 3 else "false"] for n in range(8)}
    found = reference_of(right := public | secret, right, Known())
    memorised = public | {test: ["false"] for test in secret}
    assert bool(objection(found, memorised, 0.9, keyed=keyed)) == keyed
    assert not objection(found, right, 0.9, keyed=keyed) and not by_heart_objection(found, memorised, 0.9)
