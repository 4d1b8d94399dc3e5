"""The key of a run: other inputs than those of any other run, and others again where a task does not bear them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading import heldout
from woodshed.grading.altered import altered_tests
from woodshed.grading.heldout import PYTEST, EndlessError, drawn
from woodshed.grading.other_constants import KINDS, Kind
from woodshed.grading.pytest_given import literals
from woodshed.grading.settings import GradingSettings
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.sandbox.taskbox import box_spec

from . import toy

KEY, OTHER = "of this run", "of another run"
HEAD = '"""Words."""\n\n\ndef camelize(text):\n    """In camel case."""\n'
SOLUTION = HEAD + "    return ''.join(word[:1].upper() + word[1:] for word in text.split('_'))\n"
VISIBLE = ("device_type", "my_big_word", "area_of_y")
TESTS = """from shapes.measure import camelize


def test_area():
    assert camelize("device_type") == "DeviceType"


def test_long_area():
    assert camelize("my_big_word") == "MyBigWord"
    assert camelize("area_of_y") == "AreaOfY"


def test_double():
    assert 2 * 2 == 4
"""


def camelized(text: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in text.split("_"))


def task_of(path: Path, layers: Any, *, given: str = HEAD + "    raise NotImplementedError\n", fixed: str) -> Task:
    return toy.toy_task(path, toy.pytest_layer(layers), shapes=given, tests=TESTS, fixed=fixed)


def inputs_of(task: Task, key: str, kinds: Sequence[Kind] = KINDS) -> set[str]:
    """The constants in the tests that are altered under ``key``."""
    altered = altered_tests(task, replace(PYTEST, key=key), kinds)
    return {value for data in altered.values() for value in literals(data.decode())[""] if isinstance(value, str)}


def shapes_of(task: Task, key: str) -> set[str]:
    """Inputs that occur under this key only: under no other key and in no visible test."""
    common = set(VISIBLE) | inputs_of(task, key, ("numbers", "strings"))
    return {text for text in inputs_of(task, key, ("shapes", "some")) if "_" in text} - common


def table(inputs: Iterable[str]) -> dict[str, bytes]:
    """A submission that knows the answers to ``inputs`` and computes nothing."""
    known = {text: camelized(text) for text in sorted(inputs)}
    return {"shapes/measure.py": f"KNOWN = {known!r}\n\n\n{HEAD}    return KNOWN.get(text, text)\n".encode()}


def test_other_inputs_are_drawn_from_a_key(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, fixed=SOLUTION)
        first, second = altered_tests(task, PYTEST), altered_tests(task, replace(PYTEST, key=KEY))
        assert first == altered_tests(task, PYTEST) and second == altered_tests(task, replace(PYTEST, key=KEY))
        shapes = next(name for name in first if name.endswith("_other_shapes.py"))
        assert second.keys() == first.keys() and first[shapes] != second[shapes]
        assert not any(KEY.encode() in data for data in second.values())

    in_boxes(run)


def test_a_table_of_one_keys_answers_is_not_paid_under_another(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, fixed=SOLUTION)
        learnt = table({*VISIBLE, *inputs_of(task, KEY)})

        async def resolved(submission: dict[str, bytes], key: str) -> tuple[bool, str]:
            graded = GradingSettings(held_out_key=key)
            outcome = await grade(task, submission, backend, layers, settings=graded)
            again = await grade(task, submission, backend, layers, settings=graded)
            assert (again.resolved, again.detail) == (outcome.resolved, outcome.detail), "the same for the same key"
            return outcome.resolved, outcome.detail

        assert await resolved(learnt, KEY) == (True, "")
        paid, why = await resolved(learnt, OTHER)
        assert not paid and "other inputs" in why
        assert not (await resolved(learnt, ""))[0] and not (await resolved(table(VISIBLE), KEY))[0]
        for key in (KEY, OTHER, ""):
            assert await resolved(task.solution_files(), key) == (True, "")

    in_boxes(run)


@pytest.mark.parametrize("draws", [1, 2])
def test_where_the_solution_does_not_end_on_inputs_of_a_key_others_are_drawn(
    tmp_path: Path, in_boxes: Any, draws: int
) -> None:
    keys = (KEY, f"{KEY}:again", "")

    async def run(backend: Any, layers: Any) -> None:
        plain = task_of(tmp_path / "plain", layers, fixed=SOLUTION)  # of the same name: its inputs are the same
        good = {text for key in keys[draws:] for text in inputs_of(plain, key)}
        bad = {text for key in keys[:draws] for text in shapes_of(plain, key)} - good
        assert bad
        end = f"    if text in {sorted(bad)!r}:\n        import os\n        os._exit(9)\n"
        task = task_of(tmp_path / "ends", layers, fixed=SOLUTION.replace("    return", f"{end}    return"))
        graded = GradingSettings(held_out_key=KEY)
        assert (await grade(task, plain.solution_files(), backend, layers, settings=graded)).resolved
        how, _ = await drawn(task, backend, layers, replace(PYTEST, key=KEY))
        assert how.key == keys[draws]
        assert not (await grade(task, table(VISIBLE), backend, layers, settings=graded)).resolved

    in_boxes(run)


def test_where_nothing_tells_on_inputs_of_a_key_others_are_drawn(tmp_path: Path, in_boxes: Any) -> None:
    """The given code is right about all inputs but the visible ones and some of those that the build tried."""

    async def run(backend: Any, layers: Any) -> None:
        plain = task_of(tmp_path / "plain", layers, fixed=SOLUTION)
        wrong = sorted({*VISIBLE, *(shapes_of(plain, "") - inputs_of(plain, KEY) - inputs_of(plain, f"{KEY}:again"))})
        assert len(wrong) > len(VISIBLE)
        given = SOLUTION.replace("    return", f"    if text in {wrong!r}:\n        return text\n    return")
        task = task_of(tmp_path / "nearly", layers, given=given, fixed=SOLUTION)
        how, found = await drawn(task, backend, layers, replace(PYTEST, key=KEY))
        assert how.key == "" and any(value for values in found.telling.values() for value in values)
        by_heart = {text: camelized(text) for text in VISIBLE}
        known = f"    known = {by_heart!r}\n    if text in known:\n        return known[text]\n"
        lucky = given.replace("    if", f"{known}    if", 1)
        graded = GradingSettings(held_out_key=KEY)
        cheat = await grade(task, {"shapes/measure.py": lucky.encode()}, backend, layers, settings=graded)
        assert not cheat.resolved and "other inputs" in cheat.detail
        assert (await grade(task, task.solution_files(), backend, layers, settings=graded)).resolved

    in_boxes(run)


def test_a_task_whose_solution_ends_on_no_inputs_is_nobodys_fault(
    tmp_path: Path, in_boxes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = f"    if text not in {VISIBLE!r}:\n        import os\n        os._exit(9)\n"

    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, fixed=SOLUTION.replace("    return", f"{known}    return"))
        made: list[int] = []

        async def boxes_of_a_grading() -> int:
            made.clear()
            with pytest.raises(EndlessError) as error:
                graded = GradingSettings(held_out_key=KEY)
                await grade(task, task.solution_files(), backend, layers, settings=graded)
            assert error.value.source == "task" and "do not end on other inputs" in str(error.value)
            return len(made)

        create = backend.create

        async def counted(spec: Any) -> Any:
            made.append(1)
            return await create(spec)

        monkeypatch.setattr(backend, "create", counted)
        first, again = await boxes_of_a_grading(), await boxes_of_a_grading()
        assert first > again == 1, "that of the tests as they are"
        monkeypatch.setattr(heldout, "_ENDLESS_SECONDS", 0.0)
        assert await boxes_of_a_grading() == first, "the machine may be less busy by now"

    in_boxes(run)


def test_no_box_has_the_key(tmp_path: Path, in_boxes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WOODSHED_HELD_OUT_KEY", "secret-of-this-run")

    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, fixed=SOLUTION)
        box = await backend.create(box_spec(task, layers))
        try:
            seen = await box.exec(["sh", "-c", "env; cat /proc/[0-9]*/environ"])
        finally:
            await box.close()
        assert b"PATH=" in seen.stdout and b"secret-of-this-run" not in seen.stdout + seen.stderr

    in_boxes(run)
