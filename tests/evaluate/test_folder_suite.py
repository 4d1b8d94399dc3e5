"""A folder as a suite: the tasks of one split, and a word about those of the others."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from woodshed.evaluate.builder.lock import IN_USE, RETIRED, Entry, Lock, write_lock
from woodshed.evaluate.suites.base import SuiteContext, SuiteError
from woodshed.evaluate.suites.by_name import load_suites
from woodshed.evaluate.suites.folder import load_folder
from woodshed.record.task import Task, TaskInfo, save_task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, split in (("a", "heldout"), ("b", "train"), ("c", "train")):
        info = TaskInfo(fail_to_pass=("t",), grader="cases", split=split, submission=("*.py",))
        files: dict[str, Any] = {"workspace": {"f.py": b"x = 1\n"}, "tests": {"test.sh": b"true\n"}}
        save_task(
            tmp_path / "tasks" / name,
            name=f"org/{name}",
            instruction="fix f",
            info=info,
            solution={"f.py": b"x = 2\n"},
            **files,
        )
    return tmp_path / "tasks"


def loaded(folder: Path, split: str) -> list[str]:
    nothing = cast(Any, None)
    context = SuiteContext(nothing, nothing, folder.parent / "out", lambda *_: None, split=split)
    return [task.name for task in asyncio.run(load_folder(str(folder), context))]


def test_it_says_how_many_tasks_are_of_other_splits(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert loaded(folder, "heldout") == ["org/a"]
    assert "1 of its 3 tasks are of the split heldout; --split all takes the others, too" in caplog.text
    caplog.clear()
    assert loaded(folder, "all") == ["org/a", "org/b", "org/c"] and not caplog.text


def test_a_task_is_in_one_suite_only(folder: Path) -> None:
    nothing = cast(Any, None)
    context = SuiteContext(nothing, nothing, folder.parent / "out", lambda *_: None, split="all")
    shutil.copytree(folder / "b", folder.parent / "copy" / "b")
    suites = asyncio.run(load_suites([str(folder / "a"), str(folder / "b")], context))
    assert [len(suite.tasks) for suite in suites] == [1, 1]
    for other in (f"{folder}/", str(folder.parent / "copy")):
        with pytest.raises(SuiteError, match=f"org/[ab] is in --suite {folder}, too; give each task once"):
            asyncio.run(load_suites([str(folder), other], context))


def test_a_locked_benchmark_is_evaluated_as_it_was_locked(folder: Path) -> None:
    def entry(name: str, status: str) -> Entry:
        digest = Task.load(folder / name).digest
        return Entry(digest, "s", "c", "2026-01-01", "history", "terse", 1, 1, status=status)

    write_lock(folder.parent, Lock({"a": entry("a", IN_USE), "b": entry("b", RETIRED), "c": entry("c", IN_USE)}))
    for place in (folder, folder.parent):
        assert loaded(place, "all") == ["org/a", "org/c"]
    (folder / "a" / "instruction.md").write_text("fix g")
    for place in (folder, folder.parent):
        with pytest.raises(SuiteError, match="was changed since it was locked"):
            loaded(place, "all")


def test_a_split_without_tasks_is_refused(folder: Path) -> None:
    with pytest.raises(
        SuiteError, match=r"none of its 3 tasks in use is of the split 'dev' \(there are: heldout, train\)"
    ):
        loaded(folder, "dev")
