"""A task with several changed functions: each of them must be fixed, also one that only few values depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading.heldout import PYTEST, answers, reference
from woodshed.grading.node.grader import NODE
from woodshed.grading.own_values import OwnValuesError, objection_to, own_values, places_in, text_of
from woodshed.grading.telling import Reference
from woodshed.grading.verify import grade
from woodshed.record.task import Task, TaskError, save_task
from woodshed.tasks.validate import guessing

from . import toy
from .node import toy as node

AREA, DOUBLE = "shapes/measure.py:area", "shapes/measure.py:double"
LINES = [f"    assert double({n}) == {2 * n}\n" for n in range(113, 8113, 100)]
TESTS = f"""from shapes.measure import area, double


def test_area():
{"".join(LINES[:40])}    assert area(12, 13) == 156
    assert area(24, 19) == 456


def test_long_area():
{"".join(LINES[40:])}    assert area(17, 15) == 255
    assert area(31, 14) == 434


def test_double():
    assert 2 * 2 == 4
"""
GIVEN = toy.SHAPES.replace("return width + height", "raise NotImplementedError").replace("2 * value", "value")
FIXED = toy.SHAPES.replace("width + height", "width * height")
TABLE = toy.SHAPES.replace("width + height", "{12: 156, 24: 456, 17: 255, 31: 434}.get(width, 0)")


def saved(task: Task, own: dict[str, str], **files: dict[str, bytes]) -> Task:
    """The task with the ``own`` values that a build found, and with other ``files``."""
    whole = {"workspace": task.workspace_files(), "tests": task.test_files(), "solution": task.solution_files()}
    return save_task(
        task.path,
        name=task.name,
        instruction=task.instruction,
        info=replace(task.info, own_values=own),
        config={"environment": task.config.get("environment", {})},
        **{kind: each | files.get(kind, {}) for kind, each in whole.items()},
    )


def test_a_table_for_the_function_with_few_values_is_refused(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        layer = toy.pytest_layer(layers)
        task = toy.toy_task(tmp_path, layer, shapes=GIVEN, tests=TESTS, fixed=FIXED)
        table = {"shapes/measure.py": TABLE.encode()}
        assert (await grade(task, table, backend, layers)).resolved, "eighty values of ``double`` stand beside four"

        found = await reference(task, backend, layers, PYTEST)
        teacher, _ = guessing.by_heart(task)
        made = guessing.alone(task, (AREA, DOUBLE))
        assert list(made) == [AREA, DOUBLE] and not guessing.alone(task, (AREA,))
        seen = {name: await answers(task, files, backend, layers, PYTEST, teacher) for name, files in made.items()}
        few = guessing.few_values(found, found, seen)
        assert list(few) == [AREA]
        own = few[AREA]
        assert {(test[-9:], n) for test, _, n in places_in(own)} == {
            ("test_area", 40),
            ("test_area", 41),
            ("long_area", 40),
            ("long_area", 41),
        }

        task = saved(task, {AREA: own})
        assert Task.load(task.path).info.own_values == {AREA: own}
        honest = await grade(task, task.solution_files(), backend, layers)
        assert honest.resolved, honest.detail
        fake = await grade(task, table, backend, layers)
        assert not fake.resolved and f"values of {AREA} differ" in fake.detail
        damaged = saved(task, {AREA: "[1"})
        with pytest.raises(TaskError, match=r"own_values\].*build the task again"):
            await grade(damaged, table, backend, layers)

    in_boxes(run)


CODE = """'use strict';
function area(width, height) {
  return AREA;
}
function double(value) {
  return 2 * value;
}
module.exports = { area, double };
"""


def test_a_table_for_an_exported_function_is_refused(tmp_path: Path, in_boxes: Any) -> None:
    """As above, in a Node project."""
    lines = [f"  assert.strictEqual(measure.double({n}), {2 * n});\n" for n in range(113, 8113, 100)]
    code = {
        kind: {"lib/measure.js": CODE.replace("AREA", text).encode()}
        for kind, text in {
            "given": "missing",
            "fixed": "width * height",
            "table": "{ 12: 156, 24: 456, 17: 255, 31: 434 }[width]",
        }.items()
    }
    code["given"] = {"lib/measure.js": code["given"]["lib/measure.js"].replace(b"2 * value", b"value")}

    async def run(backend: Any, layers: Any) -> None:
        task = node.toy_task(tmp_path)
        head = node.TESTS.partition("test('area'")[0]
        tests = "".join(
            f"test('{name}', () => {{\n{''.join(lines[part])}"
            + "".join(f"  assert.strictEqual(measure.area({w}, {h}), {w * h});\n" for w, h in sizes)
            + "});\n"
            for name, part, sizes in (
                ("area", slice(0, 40), [(12, 13), (24, 19)]),
                ("long area", slice(40, 80), [(17, 15), (31, 14)]),
            )
        )
        text = f"{head}{tests}test('double', () => {{\n  assert.strictEqual(2 * 2, 4);\n}});\n".encode()
        files = {
            "workspace": {**code["given"], node.FILE: text},
            "tests": {f"workspace/{node.FILE}": text},
            "solution": code["fixed"],
        }
        task = saved(task, {}, **files)
        table = code["table"]
        assert (await grade(task, table, backend, layers)).resolved
        found = await reference(task, backend, layers, NODE)
        names = ("lib/measure.js:area", "lib/measure.js:double")
        few = await guessing.each_alone(task, found, found, names, backend, layers, NODE)
        assert list(few) == ["lib/measure.js:area"]
        task = saved(task, few)
        assert (await grade(task, task.solution_files(), backend, layers)).resolved
        fake = await grade(task, table, backend, layers)
        assert not fake.resolved and "values of lib/measure.js:area differ" in fake.detail

    in_boxes(run)


def known(count: int) -> Reference:
    values = {"t_with_other_some.py::test_it[7]": [f'"{n}"' for n in range(count)]}
    return Reference(values, values)


@pytest.mark.parametrize(("right", "refused"), [(0, True), (4, True), (5, False), (10, False)])
def test_half_of_the_share_of_a_functions_own_values_is_required(right: int, refused: bool) -> None:
    seen = {"t_with_other_some.py::test_it[7]": [f'"{n}"' if n >= 20 - right else "null" for n in range(20)]}
    own = {"f": text_of({("t.py::test_it", 0, n) for n in range(10, 20)})}
    assert bool(objection_to(known(20), seen, 0.9, own)) == refused
    assert not objection_to(known(20), seen, 0.9, {}), "none has few values"


def test_values_are_found_by_their_places_in_any_kind_of_other_inputs() -> None:
    own = {"f": text_of({("t.py::test_it", 0, n) for n in range(3)})}
    for kind in ("shapes", "drawn"):
        values = {f"t_with_other_{kind}.py::test_it[{kind}]": ['"a"', '"b"', '"c"', '"d"']}
        assert objection_to(Reference(values, values), {next(iter(values)): ["1", "2", "3", '"d"']}, 0.9, own)
        assert not objection_to(Reference(values, values), {next(iter(values)): ['"a"', '"b"', "3"]}, 0.9, own)


def test_missing_answers_are_wrong_ones() -> None:
    own = {"f": text_of({("t.py::test_it", 0, n) for n in range(10, 20)})}
    assert objection_to(known(20), {}, 0.9, own).startswith("10 of 10 values of f differ")


@pytest.mark.parametrize(
    ("wrong", "enough"),
    [([], False), ([3, 4], False), ([3, 4, 5], True)],
)
def test_fewer_than_three_own_values_are_none(wrong: list[int], enough: bool) -> None:
    seen = {"t_with_other_some.py::test_it[7]": ["null" if n in wrong else f'"{n}"' for n in range(20)]}
    text = own_values(known(20), seen)
    assert bool(text) == enough
    if enough:
        assert json.loads(text) == {"t.py::test_it": [[0, n] for n in wrong]}


def test_a_function_that_cannot_be_replaced_is_not_judged() -> None:
    """The submission is the solution then."""
    found = known(20)
    answered = {"solved": found.telling, "few": {"t_with_other_some.py::test_it[7]": [f'"{n}"' for n in range(19)]}}
    assert guessing.few_values(found, found, answered) == {"few": ""}  # type: ignore[arg-type]
    left = Reference(found.values, {test: [*values[:19], None] for test, values in found.telling.items()})
    assert guessing.few_values(found, left, answered) == {"few": ""}, "a guess gives what it misses"  # type: ignore[arg-type]
    tests = {"solved": ["t.py::test_it[7]"], "few": ["t.py::test_it[7]"]}
    assert guessing.replaceable(found, tests, {"few": ""}) == ("few",)


def test_own_values_that_are_one_constant_are_none() -> None:
    values = {"t_with_other_some.py::test_it": [f'"{n}"' for n in range(20)] + ["-1"] * 4}
    seen = {"t_with_other_some.py::test_it": [f'"{n}"' for n in range(20)]}
    assert own_values(Reference(values, values), seen) == ""


@pytest.mark.parametrize("text", ["", "[1", "[]", '{"a": 1}', '{"a": [1]}', '{"a": [["x", 2]]}', '{"a": [[1]]}'])
def test_a_damaged_text_is_an_error(text: str) -> None:
    with pytest.raises(OwnValuesError, match="does not map tests to pairs of numbers"):
        places_in(text)
