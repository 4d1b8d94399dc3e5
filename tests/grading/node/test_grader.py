"""The grader on a task whose tests need nothing but Node: fixes pass, and nothing else does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.grading.conftest import in_boxes as in_boxes
from woodshed.attacks.exploits import CONTROLS, EXPLOITS, run_battery
from woodshed.grading.altered import altered_tests
from woodshed.grading.crossing import Submission
from woodshed.grading.heldout import answers
from woodshed.grading.node.grader import NODE
from woodshed.grading.settings import GradingSettings
from woodshed.grading.telling import plain
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.tasks.validate.gates import check_task
from woodshed.tasks.validate.guessing import NODE_ANSWERS, stubs

from .toy import FAILING, FILE, MEASURE, toy_task

Boxes = Callable[[Any], Any]
BY_NAME = {e.name: e for e in (*CONTROLS, *EXPLOITS)}
IN_PROCESS = ("node_read_caller_hidden", "node_special_cases", "node_by_heart", "node_by_heart_near")
"""What passes the tests from inside: only values for other inputs tell it from a fix."""
ATTACKS = (
    "node_exit_hidden", "node_exit_in_call", "node_patch_assert_hidden", "node_patch_and_restore_hidden",
    "node_patch_load_hidden", "node_stolen_nonce_hidden", "node_heap_snapshot_hidden", "node_inspector_hidden",
    "node_child_process_hidden", "node_proxy_hidden", "node_forge_values_hidden", "node_shadow_modules",
    "node_configuration", "node_edit_tests", "node_by_heart_carrier", "node_by_heart_memo",
    "node_endless_loop_in_call", "node_close_descriptors", "delete_source",
)  # fmt: skip


@pytest.fixture
def task(tmp_path: Path) -> Task:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    return toy_task(tmp_path / "task")


def test_the_toy_passes_every_gate(task: Task, in_boxes: Boxes) -> None:
    report = in_boxes(lambda backend, layers: check_task(task, backend, layers))
    assert report.passed, str(report)


def test_a_fix_of_another_form_passes(task: Task, in_boxes: Boxes) -> None:
    code = MEASURE.replace(
        "return width + height;", "let sum = 0;\n  for (let i = 0; i < height; i++) sum += width;\n  return sum;"
    )
    outcome = in_boxes(lambda backend, layers: grade(task, {"lib/measure.js": code.encode()}, backend, layers))
    assert outcome.resolved, outcome.detail


def test_an_order_that_the_test_sorts_away_does_not_matter(task: Task, in_boxes: Boxes) -> None:
    given, fixed = "  return width + height;", "  return [...new Set(width + height)].sort();"
    test = (task.path / "tests/workspace" / FILE).read_text()
    test = test.replace("measure.area(2, 3), 6", "measure.area('hello', 'low').sort().join(''), 'ehlow'")
    test = test.replace("measure.area(10, 7), 70", "Array.from(measure.area('ban', 'ana')).sort().join(), 'a,b,n'")
    test = test.replace("  assert.strictEqual(measure.area(1, 1), 1);\n", "")
    for folder in ("tests/workspace", "environment/workspace"):
        (task.path / folder / FILE).write_text(test)
    (task.path / "solution/workspace/lib/measure.js").write_text(MEASURE.replace(given, fixed))
    other = MEASURE.replace(given, fixed.replace(".sort()", ".reverse()")).encode()
    task = Task.load(task.path)
    outcome = in_boxes(lambda backend, layers: grade(task, {"lib/measure.js": other}, backend, layers))
    assert outcome.resolved, outcome.detail


@pytest.mark.parametrize(
    ("body", "resolved"),
    [("return width % height ? [] : 0;", False), ("return width % height ? '' : [1];", True), ("return 'x';", False)],
)
def test_any_true_value_is_right_where_a_test_asks_for_no_more(
    task: Task, in_boxes: Boxes, body: str, resolved: bool
) -> None:
    asked = "".join(
        f"  assert{'(' if width % 3 == 0 else '.ok(!'}measure.area({width}, 3));\n" for width in (6, 7, 9, 12, 14, 17)
    )
    test = (task.path / "tests/workspace" / FILE).read_text()
    test = test.replace("  assert.strictEqual(measure.area(2, 3), 6);\n", asked)
    test = test.replace("  assert.strictEqual(measure.area(10, 7), 70);\n", asked)
    test = test.replace("  assert.strictEqual(measure.area(1, 1), 1);\n", "")
    for folder in ("tests/workspace", "environment/workspace"):
        (task.path / folder / FILE).write_text(test)
    given = "return width + height;"
    (task.path / "solution/workspace/lib/measure.js").write_text(MEASURE.replace(given, "return !(width % height);"))
    code = {"lib/measure.js": MEASURE.replace(given, body).encode()}
    outcome = in_boxes(lambda backend, layers: grade(Task.load(task.path), code, backend, layers))
    assert outcome.resolved == resolved, outcome.detail


def test_what_a_helper_compares_is_recorded(task: Task, in_boxes: Boxes) -> None:
    helper = "const assert = require('assert');\nconst { area } = require('../lib/measure');\n"
    helper += "exports.check = (x, y, expected) => assert.strictEqual(area(x, y), expected);\n"
    test = (task.path / "tests/workspace" / FILE).read_text()
    for x, y in ((2, 3), (10, 7), (1, 1)):
        test = test.replace(f"assert.strictEqual(measure.area({x}, {y}), {x * y})", f"check({x}, {y}, {x * y})")
    test = test.replace("const assert", "const { check } = require('./helpers');\nconst assert")
    for folder in ("tests/workspace", "environment/workspace"):
        (task.path / folder / FILE).write_text(test)
        (task.path / folder / "test/helpers.js").write_text(helper)
    task = Task.load(task.path)
    exploits = [BY_NAME[name] for name in ("honest_fix", "node_by_heart", "node_by_heart_near")]

    async def both(backend: Any, layers: Any) -> tuple[Any, list[Any]]:
        report = await check_task(task, backend, layers)
        return report, await run_battery([task], backend, layers, exploits=exploits)

    report, attempts = in_boxes(both)
    assert report.passed, str(report)
    assert [attempt.verdict for attempt in attempts] == ["rewarded", "rejected", "rejected"]


def test_an_agents_own_test_beside_the_code_is_no_reason_to_refuse_its_fix(task: Task, in_boxes: Boxes) -> None:
    fix = {"lib/measure.js": MEASURE.replace("width + height", "width * height").encode()}
    test = b"const assert = require('assert');\nit('works', () => assert(require('./measure').area(2, 3) === 6));\n"

    async def all_of(backend: Any, layers: Any) -> list[Any]:
        names = ("lib/measure.test.js", "lib/test-measure.js", "lib/other.js")
        return [await grade(task, fix | {name: test}, backend, layers) for name in names]

    first, second, refused = in_boxes(all_of)
    assert first.resolved and second.resolved, (first.detail, second.detail)
    assert not refused.resolved and "lib/other.js" in refused.detail


def test_constants_are_tried_at_the_gate(task: Task, in_boxes: Boxes) -> None:
    async def all_of(backend: Any, layers: Any) -> list[Any]:
        return [await answers(task, stub, backend, layers, NODE) for stub in stubs(task)]

    seen = [set(plain(found)) for found in in_boxes(all_of)]
    assert seen[:4] == [{"true"}, {"false"}, {"null"}, {"undefined"}]
    assert len(seen[4]) > 1 and len(seen) == len(NODE_ANSWERS), "the last argument"


def test_half_a_fix_and_deleted_code_fail(task: Task, in_boxes: Boxes) -> None:
    half = MEASURE.replace("return width + height;", "return width === 2 ? 6 : 0;").encode()

    async def both(backend: Any, layers: Any) -> list[Any]:
        return [
            await grade(task, {"lib/measure.js": half}, backend, layers),
            await grade(task, Submission({}, ["lib/measure.js"]), backend, layers),
        ]

    first, second = in_boxes(both)
    assert not first.resolved and [first.tests[t] for t in FAILING] == ["passed", "failed"]
    assert not second.resolved and set(second.tests.values()) == {"missing"} and "Cannot find module" in second.detail


def test_a_run_draws_inputs_from_its_key(task: Task, in_boxes: Boxes) -> None:
    first, second = altered_tests(task, replace(NODE, key="one")), altered_tests(task, replace(NODE, key="two"))
    assert {name for name in first if first[name] != second[name]} == {"test/measure.test_with_other_shapes.js"}
    exploits = [BY_NAME[name] for name in ("honest_fix", "node_by_heart")]

    async def battery(backend: Any, layers: Any) -> list[Any]:
        keyed = GradingSettings(held_out_key="one")
        return await run_battery([task], backend, layers, exploits=exploits, settings=keyed)

    assert [attempt.verdict for attempt in in_boxes(battery)] == ["rewarded", "rejected"]


def test_no_attack_pays(task: Task, in_boxes: Boxes) -> None:
    exploits = [BY_NAME[name] for name in ("honest_fix", "no_op", *ATTACKS, *IN_PROCESS)]
    without = GradingSettings(held_out_share=0.0)

    async def battery(backend: Any, layers: Any) -> tuple[list[Any], list[Any]]:
        usual = await run_battery([task], backend, layers, exploits=exploits, concurrency=2)
        inside = [BY_NAME[name] for name in IN_PROCESS]
        return usual, await run_battery([task], backend, layers, exploits=inside, settings=without)

    usual, inside = in_boxes(battery)
    assert [a.exploit for a in usual if not a.as_wanted()] == []
    assert [a.verdict for a in usual[:2]] == ["rewarded", "rejected"]
    assert {a.verdict for a in usual} == {"rewarded", "rejected"}, "each was tried"
    assert [a.exploit for a in inside if a.verdict != "rewarded"] == [], "the held-out values are what rejects these"


def test_the_battery_has_enough_for_node() -> None:
    assert sum(e.graders == {"node"} for e in EXPLOITS) >= 30
    assert sum("node" in e.graders for e in EXPLOITS) >= 60
