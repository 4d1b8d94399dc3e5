"""Who knows every visible answer and computes nothing: near inputs, carriers, memos, tables of own types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from woodshed.attacks.exploits import EXPLOITS, by_heart, run_battery
from woodshed.attacks.exploits.base import Exploit
from woodshed.attacks.exploits.catalogue import HONEST_FIX
from woodshed.grading.heldout import PYTEST, answers, reference
from woodshed.grading.settings import GradingSettings
from woodshed.grading.telling import Known, plain, problem_of, reference_of
from woodshed.grading.verify import grade
from woodshed.record.task import Task
from woodshed.tasks.validate import guessing
from woodshed.tasks.validate.gates import check_task

from . import toy

HEAD = '''"""Text and bytes."""

from dataclasses import dataclass


@dataclass
class Label:
    name: str
    size: int


'''
CODE = {
    "pack": ("data", "return bytes(reversed([byte ^ 7 for byte in data]))"),
    "unpack": ("data", "return bytes(byte ^ 7 for byte in reversed(data))"),
    "camelize": ("text", 'return "".join(word[:1].upper() + word[1:] for word in text.split("_"))'),
    "label": ("text", 'name, _, size = text.partition(":")\n    return Label(name.upper(), 2 * int(size))'),
}
HONEST = {
    "pack": ("data", "return bytes(_turned(data)[::-1])"),
    "unpack": ("data", "return bytes(_turned(data[::-1]))\n\n\n"
               "def _turned(data):\n    return [7 ^ one for one in data]"),
    "camelize": ("text", "words = text.split('_')\n    made = ''\n    for word in words:\n"
                 "        made += word[0:1].upper()\n        made += word[1:]\n    return made"),
    "label": ("text", "parts = text.split(':')\n    found = Label('', 0)\n    found.name = parts[0].upper()\n"
              "    found.size = int(parts[1]) + int(parts[1])\n    return found"),
}  # fmt: skip
IMPORT = "from shapes.measure import Label, camelize, label, pack, unpack\n\n\n"
TESTS = {
    "round trip": "def test_area():\n    assert unpack(pack(b'hello')) == b'hello'\n\n\n"
                  "def test_long_area():\n    data = b'more text'\n    assert unpack(pack(data)) == data\n",
    "moved": "def test_area():\n    assert camelize('device_type') == 'DeviceType'\n\n\n"
             "def test_long_area():\n    assert camelize('my_big_word') == 'MyBigWord'\n"
             "    assert camelize('area_of_y') == 'AreaOfY'\n",
    "own types": "def test_area():\n    assert label('abc:4') == Label('ABC', 8)\n\n\n"
                 "def test_long_area():\n    found = [label('other:12'), label('old word:7')]\n"
                 "    assert found == [Label('OTHER', 24), Label('OLD WORD', 14)]\n",
}  # fmt: skip
DOUBLE = "\n\ndef test_double():\n    assert Label('a', 1).size == 1\n"
EXPLOITS_BY_HEART = [e for e in vars(by_heart).values() if isinstance(e, Exploit)]


def module(bodies: dict[str, tuple[str, str]]) -> str:
    return HEAD + "\n\n".join(f"def {name}({args}):\n    {body}\n" for name, (args, body) in bodies.items())


GIVEN = module({name: (args, "raise NotImplementedError") for name, (args, _) in CODE.items()})


def task_of(path: Path, layers: Any, kind: str) -> Task:
    tests = IMPORT + TESTS[kind] + DOUBLE
    return toy.toy_task(path, toy.pytest_layer(layers), shapes=GIVEN, tests=tests, fixed=module(CODE))


@pytest.mark.parametrize("kind", TESTS)
def test_the_visible_answers_by_heart_are_not_enough(tmp_path: Path, in_boxes: Any, kind: str) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, kind)
        attempts = await run_battery([task], backend, layers, exploits=[HONEST_FIX, *EXPLOITS_BY_HEART])
        verdicts = {a.exploit: a.verdict for a in attempts}
        assert verdicts == {HONEST_FIX.name: "rewarded"} | {e.name: "rejected" for e in EXPLOITS_BY_HEART}
        assert all("other inputs" in a.detail for a in attempts[1:]), "they pass every visible test"
        other = await grade(task, {"shapes/measure.py": module(HONEST).encode()}, backend, layers)
        assert other.resolved, other.detail

    in_boxes(run)


def test_without_other_inputs_each_would_be_rewarded(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, "own types")
        attempts = await run_battery(
            [task], backend, layers, exploits=EXPLOITS_BY_HEART, settings=GradingSettings(held_out_share=0)
        )
        assert {a.verdict for a in attempts} == {"rewarded"}

    in_boxes(run)


def test_the_exploits_are_in_the_battery() -> None:
    assert len(EXPLOITS_BY_HEART) == 5 and set(EXPLOITS_BY_HEART) <= set(EXPLOITS)


def test_a_round_trip_that_hands_the_input_back_tells_by_what_is_between(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, "round trip")
        found = await reference(task, backend, layers, PYTEST)
        for values in found.telling.values():
            assert len(values) == 2 and values[1] is None, "what comes back is the input"
        assert plain(found.telling)

    in_boxes(run)


def test_code_that_only_hands_back_its_input_makes_no_task(tmp_path: Path, in_boxes: Any) -> None:
    """The reports of ``tasks check`` and of the build's gate: nothing tells there."""
    same = {**CODE, "pack": ("data", "return data"), "unpack": ("data", "return data")}

    async def run(backend: Any, layers: Any) -> None:
        tests = IMPORT + TESTS["round trip"] + DOUBLE
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=GIVEN, tests=tests, fixed=module(same))
        report = await check_task(task, backend, layers)
        assert "guess" in report.failures, str(report)

    in_boxes(run)


def test_answers_by_heart_are_tried_at_the_gate(tmp_path: Path, in_boxes: Any) -> None:
    """The gate's stubs answer the visible inputs as the solution does, and other ones as they can."""

    async def run(backend: Any, layers: Any) -> None:
        task = task_of(tmp_path, layers, "own types")
        found = await reference(task, backend, layers, PYTEST)
        teacher, pupils = guessing.by_heart(task)
        assert len(pupils) == 5
        answered = [await answers(task, pupil, backend, layers, PYTEST, teacher) for pupil in pupils]
        assert not guessing.too_cheap(found, [], answered)
        given = answered[0]
        same = [
            given[t][n] == v
            for t, values in found.values.items()
            for n, v in enumerate(values)
            if t in given and n < len(given[t])
        ]
        assert any(same), "inputs that stay as they are have known answers"
        solved = await answers(task, task.solution_files(), backend, layers, PYTEST)
        assert guessing.too_cheap(found, [], [solved]) == guessing.BY_HEART
        assert guessing.too_cheap(found, [solved], []) == guessing.CHEAP

    in_boxes(run)


def test_a_changed_function_that_no_value_tells_of_is_named() -> None:
    told = guessing.Reference({}, {"t_with_other_shapes.py::test_a": ['"x"'], "t_with_other_some.py::test_b": [None]})
    assert not guessing.guessable(told, {"f": ["t.py::test_a[1]", "t.py::test_b"]})
    assert guessing.guessable(told, {"f": ["t.py::test_a"], "g": ["t.py::test_b"]}) == ("g",)


@pytest.mark.parametrize(("usual", "named"), [(3, True), (2, False)])
def test_a_changed_function_with_one_value_nearly_everywhere_is_named(usual: int, named: bool) -> None:
    values = {f"t_with_other_some.py::test_f[{n}]": [f'"{n}"'] for n in range(9)}
    values |= {f"t_with_other_some.py::test_g[{n}]": ['""' if n < usual else f'"{n}"'] for n in range(4)}
    values |= {f"t_with_other_some.py::test_h[{n}]": ['"h"'] for n in range(5)}
    found = reference_of(values, values, Known())
    functions = {"f": ["t.py::test_f[0]"], "g": ["t.py::test_g[0]", "t.py::test_g[1]"], "h": []}
    functions["h"] = ["t.py::test_h[0]", "t.py::test_f[0]"]
    assert not problem_of(found)
    assert guessing.guessable(found, functions) == (("g",) if named else ()), "the values of all its tests count"


def test_answers_that_are_one_constant_on_other_inputs_make_no_task(tmp_path: Path, in_boxes: Any) -> None:
    """A table of the visible answers with -1 for all other inputs passes such tests."""
    fixed = "def area(width, height):\n    return width * height if height == 3 * width + 1 else -1\n"
    given = "def area(width, height):\n    raise NotImplementedError\n"
    shown = {(n, 3 * n + 1): n * (3 * n + 1) for n in (12, 7, 35, 41, 18, 29)}
    asked = [f"    assert area({n}, {m}) == {value}\n" for (n, m), value in shown.items()]
    names = ("test_area", "test_long_area")
    tests = "\n\n".join(f"def {name}():\n{''.join(asked[n::2])}" for n, name in enumerate(names))
    tests = f"from shapes.measure import area\n\n\n{tests}\n\ndef test_double():\n    assert 2 * 2 == 4\n"

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=given, tests=tests, fixed=fixed)
        fake = f"def area(width, height):\n    return {shown!r}.get((width, height), -1)\n"
        outcome = await grade(task, {"shapes/measure.py": fake.encode()}, backend, layers)
        assert outcome.resolved, f"only the gate refuses it: {outcome.detail}"
        report = await check_task(task, backend, layers)
        assert "one constant" in report.failures["guess"], str(report)

    in_boxes(run)


def test_old_tests_of_a_file_that_cannot_be_imported_tell_nothing(tmp_path: Path, in_boxes: Any) -> None:
    """As of a replayed commit: the test file imports what only the commit has."""
    given = toy.SHAPES.replace("width + height", "width * height")
    fixed = given + "\n\ndef volume(a, b, c):\n    return a * b * c\n"
    tests = toy.TESTS.replace("area, double", "area, double, volume").replace(
        "    assert area(2, 3) == 6\n", "    assert volume(2, 3, 5) == 30\n"
    )

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), shapes=given, tests=tests, fixed=fixed)
        found = await reference(task, backend, layers, PYTEST)
        told = {test.partition("::")[2] for test, values in found.telling.items() if any(values)}
        assert told == {"test_area"} and len(found.values) > len(told)

    in_boxes(run)
