"""Task directories: written, read back, and refused with a message that names file and field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from woodshed.record.task import Task, TaskError, TaskInfo, save_task


def write(path: Path, **info: object) -> Task:
    return save_task(
        path,
        name="woodshed/demo",
        instruction="fix: é\n",
        info=TaskInfo(**info),  # type: ignore[arg-type]
        workspace={"a.py": b"x = 1\n", "pkg/b.py": b""},
        tests={"test.sh": b"#!/bin/sh\n"},
        solution={"a.py": b"x = 2\n"},
    )


def test_round_trip(tmp_path: Path) -> None:
    provenance = {"name": 'quote " and \\ and\nnewline', "tab": "\t\x01"}
    task = write(tmp_path / "t", fail_to_pass=("a::1",), provenance=provenance, timeout_sec=2.5)
    loaded = Task.load(tmp_path / "t")
    assert loaded.info == task.info and loaded.info.provenance == provenance
    assert loaded.info.fail_to_pass == ("a::1",)
    assert loaded.config["schema_version"] == "1.4"
    assert loaded.workspace_files() == {"a.py": b"x = 1\n", "pkg/b.py": b""}
    assert loaded.solution_files() == {"a.py": b"x = 2\n"}
    before = loaded.digest
    (tmp_path / "t" / "environment" / "workspace" / "a.py").write_text("x = 3\n")
    assert Task.load(tmp_path / "t").digest != before


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("x = ", "task.toml"),
        ("[task]\n", "name is missing"),
        ('[task]\nname = "a/b"\n[metadata.woodshed]\nsplitt = "x"\n', "splitt"),
        ('[task]\nname = "a/b"\n[metadata.woodshed]\nsplit = 3\n', "split must be of type str"),
        ('[task]\nname = "a/b"\n[metadata.woodshed]\nfail_to_pass = "x"\n', "list of strings"),
    ],
)
def test_bad_task_toml_names_the_field(tmp_path: Path, toml: str, message: str) -> None:
    (tmp_path / "task.toml").write_text(toml)
    (tmp_path / "instruction.md").write_text("x")
    with pytest.raises(TaskError, match=message):
        Task.load(tmp_path)


def test_a_file_name_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    for part in ("environment/workspace", "tests", "solution/workspace"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "task.toml").write_text('[task]\nname = "a/b"\n')
    (tmp_path / "instruction.md").write_text("x")
    task = Task.load(tmp_path)
    (tmp_path / os.fsdecode(b"environment/workspace/caf\xe9.py")).write_bytes(b"")
    for read in (lambda: task.digest, task.workspace_names, task.workspace_files):
        with pytest.raises(TaskError, match=r"caf\\udce9.py' is not UTF-8; rename it"):
            read()


def test_refuses_paths_outside(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="outside"):
        save_task(
            tmp_path / "t",
            name="a/b",
            instruction="",
            info=TaskInfo(),
            workspace={"../evil": b""},
            tests={"test.sh": b""},
            solution={},
        )
