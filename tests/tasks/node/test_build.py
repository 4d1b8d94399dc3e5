"""From a folder with a package.json to checked tasks, by the command line and without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tasks.sources.place import Place
from woodshed.record.task import Task
from woodshed.tasks.packages.index import PackageError
from woodshed.tasks.pipeline.pin import Wishes
from woodshed.tasks.validate.gates import check_task
from woodshed.tasks.validate.leaks import scan_task

from . import project

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


@pytest.fixture(scope="module")
def built(place: Place, tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    root = tmp_path_factory.mktemp("node")
    said = place.command(
        "build",
        project.write(root / "intervals"),
        "--out",
        root / "out",
        "--per-source",
        "2",
        "--catalogue",
        place.catalogue,
        "--heldout-share",
        "0.5",
        "--kind",
        "mutate",
        "--kind",
        "delete_function",
        "--mutants",
        "2",
        "--exploits",
        "1",
    )
    assert said.returncode == 0, said.stdout + said.stderr
    return [Task.load(path.parent) for path in sorted((root / "out").glob("*/task.toml"))]


def test_tasks_are_made_and_pass_every_gate(place: Place, built: list[Task]) -> None:
    assert len(built) == 2
    assert {t.info.provenance["generator"] for t in built} == {"mutate", "delete_function"}
    for task in built:
        assert task.info.grader == "node" and task.info.layers == () and task.info.provenance["licence"] == "ISC"
        assert task.info.fail_to_pass and task.info.pass_to_pass
        assert all(t.startswith("test/intervals.test.js::") for t in task.info.fail_to_pass)
        assert task.info.test_command == "node --test test/intervals.test.js"
        assert task.info.quality["mutants"] == "2"
        assert not scan_task(task) and "dist" not in str(sorted(task.workspace_files()))
        assert "node:20" in (task.path / "environment" / "Dockerfile").read_text()
    report = place.boxes(lambda backend, layers: check_task(built[0], backend, layers))
    assert report.passed, str(report)


def test_the_same_build_again_gives_the_same_folder(place: Place, built: list[Task], tmp_path: Path) -> None:
    out = built[0].path.parent
    source = out.parent / "intervals"
    again = place.build(
        str(source), out=tmp_path / "again", tasks_per_package=2, heldout_share=0.5, parallel=2, mutants=2, exploits=1
    )
    assert [t.digest for t in again] == [t.digest for t in built]
    for name in ("sources.toml", "yield.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes()


def test_what_was_not_locked_cannot_be_wished_for_later(place: Place, built: list[Task]) -> None:
    out = built[0].path.parent
    asked = {"tasks_per_package": 2, "heldout_share": 0.5, "mutants": 2, "exploits": 1}
    with pytest.raises(PackageError, match=r"is locked in sources.toml without --needs chai@\^4; use another --out"):
        place.build(str(out.parent / "intervals"), out=out, wishes=Wishes(needs=("chai@^4",)), **asked)


def test_what_an_agent_runs_shows_the_bug(place: Place, built: list[Task]) -> None:
    async def both(backend: object, layers: object) -> list[int]:
        from woodshed.sandbox.taskbox import box_spec

        codes = []
        for files in ({}, built[0].solution_files()):
            box = await backend.create(box_spec(built[0], layers))  # type: ignore[attr-defined,arg-type]
            try:
                await box.put({f"/workspace/{n}": d for n, d in files.items()})
                codes.append((await box.exec(built[0].info.test_command, cwd="/workspace")).returncode)
            finally:
                await box.close()
        return codes

    assert [code != 0 for code in place.boxes(both)] == [True, False]


def test_the_other_commands_take_them(place: Place, built: list[Task], tmp_path: Path) -> None:
    out = built[0].path.parent
    shown = place.command("show", built[0].path)
    assert shown.returncode == 0 and "grader            node" in shown.stdout
    said = place.command("export", out, "--format", "swebench", "--out", tmp_path / "instances")
    assert said.returncode == 0 and "2 instances" in said.stdout, said.stdout + said.stderr
    said = place.command("import", tmp_path / "instances", "--out", tmp_path / "back")
    assert said.returncode == 0, said.stdout + said.stderr
    back = {t.name: t.digest for t in map(Task.load, (p.parent for p in (tmp_path / "back").glob("*/task.toml")))}
    assert back == {t.name: t.digest for t in built}
    assert "lib" in shown.stdout and place.command("stats", out).returncode == 0
