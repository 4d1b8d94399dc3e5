"""The history of a task is append-only and counts only for the current version of the task."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from woodshed.record.history import Mark, Rating, in_use, note_mark, note_rating, read_history
from woodshed.record.jsonl import read_jsonl
from woodshed.record.task import HISTORY, Task, TaskError, TaskInfo, save_task

DAY = "2026-01-02T03:04:05Z"


def make(folder: Path, text: str = "mend it\n") -> Task:
    return save_task(
        folder,
        name=f"tests/{folder.name}",
        instruction=text,
        info=TaskInfo(),
        workspace={"a.py": b"x = 1\n"},
        tests={"test.sh": b"#!/bin/sh\n"},
        solution={"a.py": b"x = 2\n"},
    )


def rating(group: str, solved: int, rollouts: int = 4, policy: str = "p", version: int = 0) -> Rating:
    return Rating(group, policy, version, rollouts, solved, "rate", DAY)


def test_ratings_are_added_and_the_fuller_of_a_group_holds(tmp_path: Path) -> None:
    task = make(tmp_path / "t")
    digest = task.digest
    assert read_history(task).ratings == ()
    first, other, fuller = rating("a", 1), rating("b", 4, policy="q", version=7), rating("a", 3, rollouts=8)
    assert note_rating(task, first) and note_rating(task, other)
    assert not note_rating(task, first), "the same is noted once"
    assert read_history(task).ratings == (first, other)
    assert note_rating(task, fuller) and not note_rating(task, first)
    assert read_history(task).ratings == (other, fuller), "the newest is the last"
    assert len((task.path / HISTORY).read_text().splitlines()) == 3, "nothing was overwritten"
    assert Task.load(task.path).digest == digest, "the history is no part of the task"


def test_marks_and_what_runs_take(tmp_path: Path) -> None:
    tasks = [make(tmp_path / name) for name in ("a", "b", "c")]
    assert note_mark(tasks[0], Mark("retired", "too easy", DAY, ("tests/x",)))
    assert not note_mark(tasks[0], Mark("retired", "too easy", "2026-02-02T00:00:00Z", ("tests/x",)))
    assert note_mark(tasks[1], Mark("quarantined", "nobody", DAY)) and note_mark(tasks[1], Mark("in use", "", DAY))
    kept, left = in_use(tasks)
    assert [t.path.name for t in kept] == ["b", "c"] and left == {"retired": 1}
    assert read_history(tasks[0]).mark == Mark("retired", "too easy", DAY, ("tests/x",))


def test_what_was_noted_of_other_contents_does_not_count(tmp_path: Path) -> None:
    task = make(tmp_path / "t")
    note_rating(task, rating("a", 0))
    note_mark(task, Mark("broken", "the solution scores 0", DAY))
    mended = make(tmp_path / "t", "mend it, please\n")
    assert read_history(mended).ratings == () and read_history(mended).status == "in use"
    assert read_history(make(tmp_path / "t")).status == "broken", "the same contents, the same history"


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"rating": {"group": "a"}}, "missing"),
        ({"rating": {**vars(rating("a", 1)), "solved": 9}}, "solved = 9 of rollouts = 4"),
        ({"rating": {**vars(rating("a", 1)), "policy": 3}}, "policy must be of type str"),
        ({"mark": {"status": "gone", "why": "", "date": DAY, "hardened": []}}, "status 'gone' is not one of in use"),
        ({}, "'mark' is missing"),
    ],
)
def test_damage_is_named(tmp_path: Path, row: dict, why: str) -> None:
    import json

    task = make(tmp_path / "t")
    (task.path / HISTORY).write_text(json.dumps({"task": task.digest, **row}) + "\n")
    with pytest.raises(TaskError, match=rf"history\.jsonl: entry 1: .*{why}.*; remove that line"):
        read_history(task)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60))
@example(b"0")
@example(b"{}")
@example(b'["\xff"]')
def test_a_line_that_a_kill_cut_short_is_nothing(tmp_path: Path, torn: bytes) -> None:
    task = make(tmp_path / "t")
    (task.path / HISTORY).unlink(missing_ok=True)
    note_rating(task, rating("a", 1))
    whole = (task.path / HISTORY).read_bytes()
    (task.path / HISTORY).write_bytes(whole + torn.replace(b"\n", b"").replace(b"\r", b""))
    assume(len(read_jsonl(task.path / HISTORY)) == 1)  # what is a whole row, such as {}, is not torn
    assert note_rating(task, rating("b", 2))
    assert [r.group for r in read_history(task).ratings] == ["a", "b"]
