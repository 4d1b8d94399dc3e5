"""Source that several threads parse at once is parsed."""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import woodshed
from woodshed.record.python_source import parse_python

SOURCE = Path(ast.__file__).read_text()


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads switch often, also while a tree is made: as where the collector runs finalisers."""

    def spend(phase: str, info: dict[str, int]) -> None:
        sum(range(2000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    gc.callbacks.append(spend)
    yield
    gc.callbacks.remove(spend)
    sys.setswitchinterval(before)


def parsed(depth: int) -> ast.Module:
    """Parse at some depth of the stack, which is what CPython 3.11 compares."""
    return parsed(depth - 1) if depth else parse_python(SOURCE)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_that_parse_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        lengths = {len(tree.body) for tree in pool.map(parsed, [3, 7, 11, 15] * 40)}
    assert lengths == {len(ast.parse(SOURCE).body)}


def test_what_cannot_be_parsed() -> None:
    with pytest.raises(SyntaxError):
        parse_python("def")
    assert isinstance(parse_python("1", mode="eval"), ast.Expression)


def test_nobody_parses_beside_it() -> None:
    root = Path(woodshed.__file__).parent
    in_boxes = {"attacks/exploits/leaks.py", "attacks/exploits/values.py"}
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if "ast.parse(" in path.read_text() and not {"guest", "boxed"}.intersection(path.parts)
    }
    assert found - in_boxes == {"record/python_source.py"}
