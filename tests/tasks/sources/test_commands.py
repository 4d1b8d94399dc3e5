"""``woodshed tasks check|show|stats`` on good, bad and damaged task directories, through the real command line."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.cli.tasks import last_line
from woodshed.record.task import Task, TaskError, TaskInfo, save_task
from woodshed.tasks.languages.python import delete_body
from woodshed.tasks.library.describe import describe
from woodshed.tasks.library.statistics import collect
from woodshed.tasks.validate.check import Verdict

from .conftest import Built
from .place import Place

SH = {"test.sh": b"#!/bin/sh\nexit 1\n"}


def handmade(folder: Path, **changes: object) -> Task:
    """A task that no generator of ours made."""
    info = TaskInfo(submission=("a.py",), fail_to_pass=("test_a.py::test_b",), pass_to_pass=("test_a.py::test_c",))
    return save_task(
        folder,
        name="someone/task",
        instruction=str(changes.pop("instruction", "Mend it.\n")),
        info=dataclasses.replace(info, **changes),
        workspace={"a.py": b"x = 1\ny = 2\n"},
        tests=SH,
        solution={"a.py": b"x = 2\ny = 2\n"},
    )


def test_check_tells_good_from_bad(place: Place, built: Built, tmp_path: Path) -> None:
    good = tmp_path / "all" / built.tasks[0].path.name
    shutil.copytree(built.tasks[0].path, good)
    leaking = tmp_path / "all" / "leaking"
    shutil.copytree(good, leaking)
    (leaking / "environment" / "workspace" / "notes.md").write_bytes(b"".join(built.tasks[0].solution_files().values()))
    excuse = tmp_path / "all" / "excuse"
    shutil.copytree(good, excuse)
    ((path, gold),) = built.tasks[0].solution_files().items()
    emptied = delete_body(gold.decode(), built.tasks[0].info.provenance["function"])
    broken = emptied.replace("raise NotImplementedError", "import nothing_of_the_kind")
    (excuse / "environment" / "workspace" / path).write_text(broken)
    (tmp_path / "all" / "damaged").mkdir()
    (tmp_path / "all" / "damaged" / "task.toml").write_text("[task\n")
    missing = handmade(tmp_path / "all" / "missing", layers=("wheels-none-" + "0" * 24,))
    foreign = handmade(tmp_path / "all" / "foreign").path / "task.toml"
    foreign.write_text(foreign.read_text().partition("[metadata")[0])
    shutil.rmtree(handmade(tmp_path / "all" / "image").path / "environment" / "workspace")
    said = place.command("check", tmp_path / "all")
    lines = {Path(line.split()[1]).name: line for line in said.stdout.splitlines()[:-1]}
    assert said.returncode == 1 and said.stdout.endswith("1 of 7 tasks pass every gate\n"), said.stdout + said.stderr
    assert lines[good.name].startswith("ok ") and "fail-to-pass" in lines[good.name]
    assert "leak: notes.md holds 100% of the answer" in lines["leaking"] and "-> remove the file" in lines["leaking"]
    assert "fails for another reason than the code under test: ModuleNotFoundError" in lines["excuse"]
    assert "damaged/task.toml: " in lines["damaged"] and "-> correct the file that is named" in lines["damaged"]
    assert missing.info.layers[0] in lines["missing"] and "woodshed tasks build" in lines["missing"]
    assert "no [metadata.woodshed] table" in lines["foreign"] and "docs/tasks.md" in lines["foreign"]
    assert "no environment/workspace" in lines["image"]
    alone = place.command("check", good, "--json")
    (row,) = json.loads(alone.stdout)
    assert alone.returncode == 0 and row["passed"] and row["failures"] == {} and row["fail_to_pass"] >= 1


def test_where_there_are_no_tasks(place: Place, tmp_path: Path) -> None:
    for command in ("check", "stats"):
        said = place.command(command, tmp_path)
        assert said.returncode == 2 and "neither a task directory nor a folder of them" in said.stderr
    said = place.command("show", tmp_path / "nowhere")
    assert said.returncode == 2 and "no task.toml" in said.stderr and "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name = "someone/task"', "name = 3"), "[task] name is missing"),
        (("[metadata.woodshed]", "[metadata.woodsheds]\n[metadata.woodshed]\ncolour = 1"), "unknown field 'colour'"),
        (("[metadata.woodshed.provenance]", "[metadata.woodshed.provenance]\nsize = 3"), "must hold strings only"),
        (('workdir = "/workspace"\nsubmission', "workdir = 4\nsubmission"), "workdir must be of type str"),
        (('schema_version = "1.4"', 'schema_version = "1.4"\nmetadata = 3'), "task.toml"),
        (("[environment]", "[environment]\nenv = 3"), "env must be a table of strings, got 3"),
    ],
)
def test_damaged_task_files_are_named(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    toml = handmade(tmp_path / "task").path / "task.toml"
    assert change[0] in toml.read_text()
    toml.write_text(toml.read_text().replace(*change))
    with pytest.raises(TaskError, match=r"task\.toml") as caught:
        Task.load(tmp_path / "task")
    assert says in str(caught.value)


def test_show_reads_like_a_page(place: Place, built: Built) -> None:
    task = next(t for t in built.tasks if t.info.provenance["generator"] == "mutate")
    said = place.command("show", task.path)
    assert said.returncode == 0, said.stderr
    for part in (
        task.instruction.splitlines()[0],
        "1 file, 2 changed lines",
        "--- a/src/prices/__init__.py",
        task.info.fail_to_pass[0],
        "licence    MIT",
        f"commit     {built.commit}",
        "no-network",
        "src/prices/**/*.py",
        "generator  bug",
    ):
        assert part in said.stdout, part
    shown = json.loads(place.command("show", task.path, "--json").stdout)
    assert shown["changed_lines"] == 2 and shown["provenance"]["licence"] == "MIT"


def test_a_task_cannot_steer_the_terminal(place: Place, tmp_path: Path) -> None:
    evil = "Mend \x1b[2J\x1b]0;title\x07 it [bold red]now[/] \u202egnirts\n"
    task = handmade(tmp_path / "task", instruction=evil, provenance={"licence": "\x1b[31mMIT"})
    said = place.command("show", task.path)
    assert "[bold red]now[/]" in said.stdout and "\ufffd[2J" in said.stdout
    assert not set("\x1b\x07\u202e") & set(said.stdout)
    assert "\x1b" not in place.command("check", task.path).stdout


def test_long_diffs_are_cut(tmp_path: Path) -> None:
    task = handmade(tmp_path / "task")
    solution = "".join(f"x{n} = {n}\n" for n in range(200)).encode()
    (task.path / "solution" / "workspace" / "a.py").write_bytes(solution)
    assert "more lines, --full shows them" in describe(task).text()
    assert "+x199 = 199" in describe(task, limit=None).text()


def test_stats_count_and_compare(place: Place, built: Built, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(built.tasks[0].path, twin)
    toml = twin / "task.toml"
    other = {"train": "heldout", "heldout": "train"}[built.tasks[0].info.split]
    text = toml.read_text().replace(f'split = "{built.tasks[0].info.split}"', f'split = "{other}"')
    toml.write_text(text.replace(f'name = "{built.tasks[0].name}"', 'name = "woodshed/twin"'))
    said = place.command("stats", built.out, twin, "--plot", tmp_path / "plot.svg")
    assert said.returncode == 0, said.stderr
    assert "CursorBench" in said.stdout and "arXiv:2603.24477" in said.stdout and "Licences: MIT 4" in said.stdout
    assert "Near-duplicate pairs: 1, of which 1 across splits" in said.stdout and "woodshed/twin" in said.stdout
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    found = json.loads(place.command("stats", built.out, "--json").stdout)
    assert next(t["changed_lines"] for t in found["tasks"] if t["generator"] == "bug") == 2
    assert (
        set(found["medians"]["generator"]) == {"bug", "deletion"} and found["medians"]["source"]["prices"]["tasks"] == 3
    )
    assert found["near_duplicates"] == [] and found["published"][1]["changed_lines"] == "181"


def test_numbers_of_one_task(tmp_path: Path) -> None:
    task = handmade(tmp_path / "task")
    found = collect([task.path])
    (size,) = found.sizes
    assert (size.changed_lines, size.files, size.prompt, size.fail_to_pass, size.pass_to_pass) == (2, 1, 9, 1, 1)
    assert (size.generator, size.source, size.licence) == ("harbor", "harbor", "not stated")


def test_a_verdict_is_one_line() -> None:
    verdict = Verdict(Path("a"), failures={"oracle": "the solution\nscores 0", "leak": "b.md"})
    assert "\n" not in str(verdict) and str(verdict).count(" -> ") == 2


def test_a_build_ends_with_what_is_in_the_folder(tmp_path: Path) -> None:
    assert last_line(0, [], tmp_path) == f"0 tasks in {tmp_path}"
    task = handmade(tmp_path / "a task")
    said = last_line(3, [task], tmp_path)
    assert said == f"3 tasks in {tmp_path}; look at one with `woodshed tasks show '{task.path}'`"


def test_an_unknown_kind_is_named_by_its_option(tmp_path: Path) -> None:
    arguments = ["tasks", "build", str(tmp_path), "--out", str(tmp_path / "out"), "--kind", "mutates"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 2 and "--kind: Input should be 'mutate'" in said.output
