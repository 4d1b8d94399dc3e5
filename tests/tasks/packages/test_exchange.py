"""Tasks as instances of SWE-bench and SWE-smith, read with git as anybody would, and as tasks again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.record.task import Task, TaskError, TaskInfo, save_task
from woodshed.tasks.library.exchange.export import Format, export_tasks, import_tasks
from woodshed.tasks.library.exchange.git import GitRepository

from .conftest import Built

CLASSIC = {
    "repo", "instance_id", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at",
    "version", "FAIL_TO_PASS", "PASS_TO_PASS", "environment_setup_commit",
}  # fmt: skip


def git(*arguments: str, cwd: Path, stdin: str = "") -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def instances(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "instances.jsonl").read_text().splitlines()]


def checkout(instance: dict, out: Path, to: Path) -> Path:
    """What a user of the dataset does: clone, go to the commit."""
    repository = out / "repositories" / f"{instance['repo']}.git"
    git("clone", "--quiet", str(repository), str(to), cwd=out)
    git("checkout", "--quiet", instance["base_commit"], cwd=to)
    return to


def tree(folder: Path) -> dict[str, bytes]:
    found = (p for p in folder.rglob("*") if p.is_file() and ".git" not in p.relative_to(folder).parts)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


@pytest.mark.parametrize("format", ["swebench", "swesmith"])
def test_there_and_back(built: Built, tmp_path: Path, format: Format) -> None:
    out, again = tmp_path / "instances", tmp_path / "again"
    found = export_tasks(built.tasks, format, out)
    assert len(found.instances) == len(built.tasks) >= 2 and found.left_out == {}
    made, left_out = import_tasks(out, again)
    assert left_out == {} and {t.name for t in made} == {t.name for t in built.tasks}
    digests = {t.name: t.digest for t in built.tasks}
    assert {t.name: t.digest for t in made} == digests
    first = (out / "instances.jsonl").read_bytes()
    export_tasks(made, format, out)
    assert (out / "instances.jsonl").read_bytes() == first, "equal tasks, equal commits"


def test_a_swe_bench_instance_is_repaired_by_its_patch(built: Built, tmp_path: Path) -> None:
    export_tasks(built.tasks, "swebench", tmp_path)
    for instance, task in zip(instances(tmp_path), built.tasks, strict=True):
        assert set(instance) == CLASSIC | {"woodshed"}
        assert json.loads(instance["FAIL_TO_PASS"]) == list(task.info.fail_to_pass)
        assert instance["problem_statement"] == task.instruction
        place = checkout(instance, tmp_path, tmp_path / task.path.name)
        assert tree(place) == task.workspace_files()
        assert git("rev-list", "--count", "HEAD", cwd=place).strip() == "1"
        git("apply", "-", cwd=place, stdin=instance["patch"])
        assert tree(place) == {**task.workspace_files(), **task.solution_files()}
        git("apply", "-", cwd=place, stdin=instance["test_patch"] or "\n") if instance["test_patch"] else None


def test_a_repository_does_not_hold_the_answer(built: Built, tmp_path: Path) -> None:
    export_tasks(built.tasks, "swebench", tmp_path)
    (repository,) = {i["repo"] for i in instances(tmp_path)}
    place = tmp_path / "repositories" / f"{repository}.git"
    listed = git("cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)", cwd=place)
    blobs = [line.split()[0] for line in listed.splitlines() if line.endswith("blob")]
    held = {git("cat-file", "blob", blob, cwd=place) for blob in blobs}
    for task in built.tasks:
        for data in task.solution_files().values():
            others = {d for t in built.tasks if t is not task for d in t.workspace_files().values()}
            assert data in others or data.decode() not in held, task.name


def test_a_swe_smith_instance_is_broken_by_its_patch(built: Built, tmp_path: Path) -> None:
    export_tasks(built.tasks, "swesmith", tmp_path)
    instance, task = instances(tmp_path)[0], built.tasks[0]
    assert isinstance(instance["FAIL_TO_PASS"], list)
    place = checkout(instance, tmp_path, tmp_path / "clone")
    git("apply", "-", cwd=place, stdin=instance["patch"])
    assert tree(place) == task.workspace_files()


def test_odd_files_survive(tmp_path: Path) -> None:
    odd = {'a "quoted" name.py': b"x = 1\n", "ü\\n.txt": b"no newline at the end", "data.bin": bytes(range(256))}
    task = save_task(
        tmp_path / "odd",
        name="tests/odd",
        instruction="mend it\n",
        workspace=odd,
        info=TaskInfo(fail_to_pass=("t.py::test",), provenance={"package": "odd"}, timeout_sec=60),
        tests={"test.sh": b"#!/bin/sh\n"},
        solution={"data.bin": bytes(range(255, -1, -1)), "new/file.py": b"y = 2\n"},
    )
    export_tasks([task], "swebench", tmp_path / "out")
    made, _ = import_tasks(tmp_path / "out", tmp_path / "again")
    assert [t.digest for t in made] == [task.digest]


def _small(place: Path, name: str, workspace: dict[str, bytes]) -> Task:
    return save_task(
        place,
        name=name,
        instruction="mend it\n",
        workspace={"a.py": b"x = 1\n", **workspace},
        info=TaskInfo(fail_to_pass=("t.py::test",), timeout_sec=60),
        tests={"test.sh": b"#!/bin/sh\n"},
        solution={"a.py": b"x = 2\n"},
    )


def test_an_import_leaves_no_file_of_an_earlier_one(tmp_path: Path) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    export_tasks([_small(tmp_path / "one", "tests/small", {"old.py": b"y = 1\n"})], "swebench", out)
    ((earlier,), _) = import_tasks(out, again)
    (earlier.path / "history.jsonl").write_text("")
    task = _small(tmp_path / "two", "tests/small", {})
    export_tasks([task], "swebench", out)
    assert [t.digest for t in import_tasks(out, again)[0]] == [task.digest]
    assert (earlier.path / "history.jsonl").exists()


def test_names_that_git_refuses_end_no_export(tmp_path: Path) -> None:
    names = ("tests/parse-uv.lock", "tests/v1..v2", "tests/...lock")
    tasks = [_small(tmp_path / str(n), name, {}) for n, name in enumerate(names)]
    bad = _small(tmp_path / "bad", "tests/bad", {"data/.git/config": b""})
    found = export_tasks([*tasks, bad], "swesmith", tmp_path / "out")
    assert found.left_out == {"tests/bad": "git holds no path like data/.git/config"}
    made, _ = import_tasks(tmp_path / "out", tmp_path / "again")
    assert [t.digest for t in made] == [t.digest for t in tasks]


def test_folders_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = save_task(
        Path("task"),
        name="tests/relative",
        instruction="mend it\n",
        workspace={"a.py": b"x = 1\n"},
        info=TaskInfo(fail_to_pass=("t.py::test",), provenance={"package": "relative"}, timeout_sec=60),
        tests={"test.sh": b"#!/bin/sh\n"},
        solution={"a.py": b"x = 2\n"},
    )
    assert export_tasks([task], "swebench", Path("instances")).left_out == {}
    made, _ = import_tasks(Path("instances"), Path("again"))
    assert [t.digest for t in made] == [task.digest]


def test_what_has_no_form_and_what_is_damaged_is_named(built: Built, tmp_path: Path) -> None:
    synthetic_task = save_task(
        tmp_path / "synthetic",
        name="tests/synthetic",
        instruction="x",
        info=TaskInfo(grader="cases"),
        workspace={"a.py": b""},
        tests={"test.sh": b""},
        solution={"a.py": b"1"},
    )
    found = export_tasks([synthetic_task, *built.tasks[:1]], "swebench", tmp_path / "out")
    assert found.left_out == {"tests/synthetic": "graded by 'cases', not by tests with ids"}
    path = tmp_path / "out" / "instances.jsonl"
    foreign = {k: v for k, v in instances(tmp_path / "out")[0].items() if k != "woodshed"}
    path.write_text(path.read_text() + json.dumps({**foreign, "instance_id": "django__django-1"}) + "\n")
    made, left_out = import_tasks(tmp_path / "out", tmp_path / "again")
    assert len(made) == 1 and "its environment is not known" in left_out["django__django-1"]
    path.write_text('{"instance_id": 1\n')
    with pytest.raises(TaskError, match=r"instances\.jsonl:1: not an instance"):
        import_tasks(tmp_path / "out", tmp_path / "again")
    with pytest.raises(TaskError, match="no such file; give the folder"):
        import_tasks(tmp_path, tmp_path / "again")


def test_a_repository_of_somebody_else_runs_nothing(tmp_path: Path) -> None:
    """Configuration and hooks of an imported repository are data."""
    repository = GitRepository(tmp_path / "r.git")
    commit = repository.commit("b", {"a.txt": b"1\n"}, "m")
    marker = tmp_path / "ran"
    (tmp_path / "r.git/config").write_text(
        (tmp_path / "r.git/config").read_text()
        + f'[diff "x"]\n\ttextconv = touch {marker}\n[core]\n\tfsmonitor = touch {marker}\n\tpager = touch {marker}\n'
    )
    patched = repository.patched(commit, repository.diff(commit, repository.commit("c", {"a.txt": b"2\n"}, "m")))
    assert patched == {"a.txt": b"2\n"} and not marker.exists()


@pytest.mark.parametrize("commit", ["--index-output=PLACE", "HEAD", "", "-h", "a" * 39])
def test_a_commit_is_never_an_option(tmp_path: Path, commit: str) -> None:
    repository = GitRepository(tmp_path / "r.git")
    repository.commit("b", {"a.txt": b"1\n"}, "m")
    for read in (repository.files, lambda c: repository.patched(c, "")):
        with pytest.raises(TaskError, match="is not a commit"):
            read(commit.replace("PLACE", str(tmp_path / "written")))
    assert not (tmp_path / "written").exists()


def test_the_commands(built: Built, tmp_path: Path) -> None:
    run = CliRunner().invoke
    done = run(app, ["tasks", "export", str(built.root / "tasks"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and f"{len(built.tasks)} instances in" in done.output, done.output
    done = run(app, ["tasks", "import", str(tmp_path / "out"), "--out", str(tmp_path / "again")])
    assert done.exit_code == 0 and f"{len(built.tasks)} tasks in" in done.output, done.output
    assert Task.load(next((tmp_path / "again").iterdir())).name in {t.name for t in built.tasks}
    done = run(app, ["tasks", "export", str(tmp_path / "again"), "--out", str(tmp_path), "--format", "csv"])
    assert done.exit_code == 2 and "there are swebench, swesmith" in done.output
