"""Fixes that pass the tests and are written in another form than the solution are rewarded; half a fix is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.grading.verify import grade

from . import toy

GIVEN_AREA, FIXED_AREA = "return width + height", "return width * height"


@dataclass(frozen=True)
class Form:
    """A second bug in the toy: the code as given, the solution, another correct fix, and the body of its test."""

    given: str
    solution: str
    other: str
    test: str


FORMS = {
    "a subclass of the expected exception": Form(
        "def read(text):\n    return int(text)\n",
        "def read(text):\n    if not text.isdigit():\n        raise ValueError(text)\n    return int(text) * 12\n",
        "class Bad(ValueError):\n    pass\n\n\n"
        "def read(text):\n    if not text.isdigit():\n        raise Bad('no: ' + text)\n    return 12 * int(text)\n",
        "assert read('12') == 144\n    for text in ('x1', '', '1.5'):\n        with pytest.raises(ValueError):\n"
        "            read(text)\n    with pytest.raises((ValueError, TypeError)):\n        read('-3')\n",
    ),
    "another message where the test looks for a word": Form(
        "def find(table, key):\n    return table.get(key)\n",
        "def find(table, key):\n    if key not in table:\n        raise KeyError(f'{key} is not found')\n"
        "    return table[key] * 2\n",
        "def find(table, key):\n    if key in table:\n        return table[key] * 2\n"
        "    raise KeyError(f'not found among {len(table)} keys: {key}')\n",
        "assert find({'a': 3}, 'a') == 6\n    with pytest.raises(KeyError) as error:\n        find({'a': 3}, 'b')\n"
        "    assert 'not found' in str(error.value)\n",
    ),
    "an iterator in place of a list": Form(
        "def parts(items, size):\n    return [items]\n",
        "def parts(items, size):\n    return [items[n : n + size] for n in range(0, len(items), size)]\n",
        "def parts(items, size):\n    for n in range(0, len(items), size):\n        yield items[n : n + size]\n",
        "assert list(parts([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]\n"
        "    assert '-'.join(parts('abcde', 3)) == 'abc-de'\n",
    ),
    "another order that the test sorts": Form(
        "def letters(text):\n    return []\n",
        "def letters(text):\n    return sorted(set(text))\n",
        "def letters(text):\n    return list(dict.fromkeys(text))[::-1]\n",
        "assert sorted(letters('hello')) == ['e', 'h', 'l', 'o']\n    found = set(letters('banana'))\n"
        "    assert found == {'a', 'b', 'n'}\n",
    ),
    "a list in place of a tuple that the test unpacks": Form(
        "def both(a, b):\n    return a, b\n",
        "def both(a, b):\n    return a + b, a * b\n",
        "def both(a, b):\n    return [b + a, b * a]\n",
        "x, y = both(3, 4)\n    assert x == 7\n    x, y = both(5, 6)\n    assert y == 30\n",
    ),
    "types that compare as equal": Form(
        "def count(words):\n    return {}\n\n\ndef both(a, b):\n    return None\n\n\ndef half(a):\n    return None\n",
        "def count(words):\n    return {word: words.count(word) for word in words}\n\n\n"
        "def both(a, b):\n    return a + b, a * b\n\n\ndef half(a):\n    return a // 2\n",
        "from collections import Counter, namedtuple\n\nBoth = namedtuple('Both', 'sum product')\n\n\n"
        "def count(words):\n    return Counter(words)\n\n\ndef both(a, b):\n    return Both(a + b, a * b)\n\n\n"
        "def half(a):\n    return a / 2 if a % 2 == 0 else a // 2\n",
        "assert count(['a', 'b', 'a']) == {'a': 2, 'b': 1}\n    assert both(3, 4) == (7, 12)\n    assert half(4) == 2\n"
        "    assert half(10) == 5\n",
    ),
    "another order of computation": Form(
        "def spread(numbers):\n    return max(numbers)\n\n\n"
        "def turned(x):\n    return x\n\n\ndef root(x):\n    return x\n",
        "import math\n\n\ndef spread(numbers):\n    mean = sum(numbers) / len(numbers)\n"
        "    return sum((x - mean) ** 2 for x in numbers) / len(numbers)\n\n\n"
        "def turned(x):\n    return 0.0 - x\n\n\ndef root(x):\n    return math.sqrt(abs(x))\n",
        "def spread(numbers):\n    mean = sum(numbers) / len(numbers)\n"
        "    return sum(x * x for x in numbers) / len(numbers) - mean**2\n\n\ndef turned(x):\n    return -x\n\n\n"
        "def root(x):\n    x = abs(x)\n    low, high = 0.0, x + 1.0\n    while high - low > 1e-7 * high:\n"
        "        mid = (low + high) / 2\n        low, high = (mid, high) if mid * mid < x else (low, mid)\n"
        "    return low\n",
        "assert spread([1.3, 1.3, 1.3, 1.3]) == pytest.approx(0.0)\n    assert turned(0.0) == 0.0\n"
        "    assert spread([1.0, 2.0, 4.0]) == pytest.approx(1.5555555)\n"
        "    assert root(2.0) == pytest.approx(1.4142136)\n    assert root(7.5) == pytest.approx(2.7386128)\n",
    ),
    "other private names in another module": Form(
        "class Stack:\n    def __init__(self, items):\n        self._items = []\n\n"
        "    def __eq__(self, other):\n        return self._items == other._items\n",
        "class Stack:\n    def __init__(self, items):\n        self._items = [*items]\n\n"
        "    def __eq__(self, other):\n        return self._items == other._items\n\n"
        "    def push(self, item):\n        self._items.append(item)\n        return self\n",
        "from shapes._stack import Stack\n",
        "assert Stack([1, 2]).push(3) == Stack([1, 2, 3])\n    assert Stack('ab').push('c') == Stack('abc')\n",
    ),
}
STACK = (
    "class Stack:\n    def __init__(self, items):\n        self._data = list(items)\n\n"
    "    def __eq__(self, other):\n        return self._data == other._data\n\n"
    "    def push(self, item):\n        self._data += [item]\n        return self\n"
)


def _task(path: Path, layers: Any, form: Form) -> Any:
    names = re.findall(r"^(?:def|class) (\w+)", form.solution, re.MULTILINE)
    tests = toy.TESTS.replace("area, double", ", ".join(["area", "double", *names]))
    tests = tests.replace("    assert area(10, 7) == 70\n    assert area(1, 1) == 1\n", f"    {form.test}")
    given = f"{form.given}\n\n{toy.SHAPES}"
    return toy.toy_task(
        path,
        toy.pytest_layer(layers),
        shapes=given,
        tests=f"import pytest\n\n{tests}",
        fixed=given.replace(form.given, form.solution).replace(GIVEN_AREA, FIXED_AREA),
    )


@pytest.mark.parametrize("name", FORMS)
def test_another_form_of_the_fix_is_rewarded(tmp_path: Path, in_boxes: Any, name: str) -> None:
    async def run(backend: Any, layers: Any) -> None:
        form = FORMS[name]
        task = _task(tmp_path, layers, form)
        fixed = f"{form.other}\n\n{toy.SHAPES}".replace(GIVEN_AREA, FIXED_AREA)
        files = {"shapes/measure.py": fixed.encode(), "shapes/_stack.py": STACK.encode()}
        outcome = await grade(task, files, backend, layers)
        assert outcome.resolved, outcome.detail

    in_boxes(run)


def test_one_of_two_functions_by_heart_is_not_rewarded(tmp_path: Path, in_boxes: Any) -> None:
    """Nearly all values belong to the function that is fixed."""
    form = FORMS["an iterator in place of a list"]
    many = "".join(f"    assert area({n}, {n + 3}) == {n * (n + 3)}\n" for n in range(3, 23))

    async def run(backend: Any, layers: Any) -> None:
        one = replace(form, test="assert parts('abcdefgh', 3) == ['abc', 'def', 'gh']\n")
        task = _task(tmp_path, layers, one)
        file = tmp_path / "tests" / "workspace" / "tests" / "test_measure.py"
        file.write_text(file.read_text().replace("    assert area(2, 3) == 6\n", many))
        known = form.given.replace("[items]", "['abc', 'def', 'gh'] if items == 'abcdefgh' else [items]")
        half = f"{known}\n\n{toy.SHAPES}".replace(GIVEN_AREA, FIXED_AREA)
        cheat = await grade(task, {"shapes/measure.py": half.encode()}, backend, layers)
        assert not cheat.resolved and "test_long_area differ" in cheat.detail, cheat.detail
        honest = await grade(task, task.solution_files(), backend, layers)
        assert honest.resolved, honest.detail

    in_boxes(run)


def test_a_slow_fix_has_time_for_each_kind_of_other_inputs(tmp_path: Path, in_boxes: Any) -> None:
    slow = toy.SHAPES.replace(GIVEN_AREA, f"import time\n\n    time.sleep(1.1)\n    {FIXED_AREA}")

    async def run(backend: Any, layers: Any) -> None:
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers))
        task = replace(task, info=replace(task.info, timeout_sec=8.0))
        outcome = await grade(task, {"shapes/measure.py": slow.encode()}, backend, layers)
        assert outcome.resolved, outcome.detail

    in_boxes(run)


def test_a_module_with_the_name_of_a_configuration_may_be_formatted(tmp_path: Path, in_boxes: Any) -> None:
    async def run(backend: Any, layers: Any) -> None:
        setup = {"shapes/setup.py": b"NAME = 'shapes'\n", "shapes/__init__.py": b"from shapes.setup import NAME\n"}
        task = toy.toy_task(tmp_path, toy.pytest_layer(layers), extra=setup)
        fixed = {**task.solution_files(), "shapes/setup.py": b'NAME = "shapes"\n'}
        outcome = await grade(task, fixed, backend, layers)
        assert outcome.resolved, outcome.detail

    in_boxes(run)
