"""Queries say what a person would, name no test, hold no code, and are scored by what the tests need."""

from __future__ import annotations

from pathlib import Path

import pytest

from woodshed.evaluate.builder.query import (
    as_typed,
    files_named,
    queries_of_commit,
    queries_of_session,
    stated,
    terse_body,
    terse_title,
)
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.tasks.packages.history import Commit

START = b"def total(prices):\n    return sum(prices)\n"
GOLD = START + b"\n\ndef dearest(prices):\n    return max(prices)\n"
TESTS = b"from prices import dearest\n\n\ndef test_dearest():\n    assert dearest([3, 1, 4711]) == 4711\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    info = TaskInfo(fail_to_pass=("tests/test_prices.py::test_dearest",), split="heldout")
    workspace = {"src/prices.py": START, "tests/test_prices.py": b"", "README.md": b"Prices.\n"}
    tests = {"test.sh": b"", "workspace/tests/test_prices.py": TESTS}
    solution = {"src/prices.py": GOLD}
    return save_task(
        tmp_path / "t", name="w/t", instruction="-", info=info, workspace=workspace, tests=tests, solution=solution
    )


@pytest.mark.parametrize(
    ("title", "query"),
    [
        ("Add `dearest()`, the opposite of cheapest (with tests)", "Add dearest(), the opposite of cheapest"),
        ("Let split() take refunds and add regression tests", "Let split() take refunds"),
        ("Repair test_split on Windows", "Repair on Windows"),
        ("Issue 1214: Compare ranges by value", "Compare ranges by value"),
        ("PROJ-12: Compare UTF-8 names by value", "Compare UTF-8 names by value"),
        ("Fix tests/test_prices.py::test_split[a] and the rounding", "Fix and the rounding"),
        ("Accept an iterator in tests of equality", "Accept an iterator in tests of equality"),
    ],
)
def test_titles(title: str, query: str) -> None:
    assert terse_title(title) == query


def test_bodies_lose_code_and_tests() -> None:
    body = "It was wrong:\n\n```python\nsplit(-1)\n```\n* fix lint\n* see test_split\n* refunds work\n"
    assert terse_body(body) == "It was wrong:\n\n* refunds work"


def test_the_queries_of_a_commit(task: Task) -> None:
    message = (
        "feat: add the opposite of cheapest (#12)\n\nSee src/prices.py and README.md.\n\nSigned-off-by: A <a@b.invalid>"
    )
    found = queries_of_commit(Commit("a" * 40, "b" * 40, message, (), 3), task)
    assert found.terse == "add the opposite of cheapest"
    assert found.named == "add the opposite of cheapest\n\nNew names: `dearest`"
    assert found.full == "add the opposite of cheapest\n\nSee src/prices.py and README.md.\n\nNew names: `dearest`"
    assert found.context == ("README.md", "src/prices.py")


def test_the_query_of_a_session_is_the_first_message_as_typed(task: Task) -> None:
    first = "<system-reminder>today is Monday</system-reminder>\npls add `dearest`, like cheapest in prices.py"
    found = queries_of_session([first, "also for generators"], task, ("s1",))
    assert found.terse == "pls add `dearest`, like cheapest in prices.py" and found.origin == "session"
    assert "also for generators" in found.full and found.context == ("src/prices.py",)
    assert as_typed("<user_query>\nfix it\n</user_query> <context>x</context>") == "fix it"
    assert queries_of_session(["<context>x</context>"], task, ()).terse == ""


def test_files_are_named_by_path_or_by_a_name_that_one_file_has() -> None:
    files = ["a/x.py", "b/x.py", "b/y.py"]
    assert files_named("see y.py, x.py, ./a/x.py and z.py.", files) == ("a/x.py", "b/y.py")


def test_a_query_is_scored_by_what_the_tests_need(task: Task) -> None:
    """The tests import ``dearest`` and compare with 4711, which they also give to it."""
    vague, clear = stated("Do the other one", task), stated("Add dearest", task)
    assert vague.needed == clear.needed == ("dearest",)
    assert (vague.score, vague.unstated) == (0.0, ("dearest",))
    assert (clear.score, clear.unstated) == (1.0, ())
