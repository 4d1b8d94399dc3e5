"""The example of a task source: through the ``tasks`` stage of a recipe, and through ``woodshed tasks build``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from real_runs import ROOT, SMOKE, woodshed

from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.sandbox import open_backend
from woodshed.stages.make_tasks import make_tasks
from woodshed.stages.tasks import load_split

EXAMPLE = ROOT / "examples" / "custom_source.py"


@pytest.fixture(autouse=True)
def boxes() -> None:
    if not open_backend().probe().ok:
        pytest.skip("no namespace sandbox here")


def test_a_recipe_draws_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    monkeypatch.setenv("WOODSHED_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "mine.toml"
    table = 'main = "custom_source:wrong_operator"\ncustom = { train = 8, dev = 2, heldout = 4 }\n'
    recipe.write_text(SMOKE.read_text().replace("synthetic = { train = 24, sft = 24, dev = 2, heldout = 4 }\n", table))
    run = RunDirectory(tmp_path / "run")
    make_tasks(load_recipe(recipe), run)
    assert [len(load_split(run, "custom", split)) for split in ("train", "dev", "heldout")] == [8, 2, 4]


def test_tasks_build_takes_it_as_a_source(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    arguments = ("tasks", "build", "custom_source:wrong_operator", "--out", "made", "--per-source", "5", "--json")
    first = woodshed(tmp_path, *arguments)
    assert first.returncode == 0, first.stdout + first.stderr
    said = json.loads(first.stdout)
    (source,) = said["sources"]
    assert source["package"] == "custom-source-wrong-operator" and source["kept"] == source["tried"] == 5
    splits = sorted(Task.load(tmp_path / path).info.split for path in said["tasks"])
    assert splits == ["heldout", "train", "train", "train", "train"]
    again = json.loads(woodshed(tmp_path, *arguments).stdout)
    assert again["tasks"] == said["tasks"] and not list((tmp_path / "made").glob(".new-*"))
    checked = woodshed(tmp_path, "tasks", "check", "made", "--exploits", "12")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    missing = woodshed(tmp_path, "tasks", "build", "custom_source:absent", "--out", "other")
    assert missing.returncode == 2 and "custom_source:absent" in missing.stderr and "Traceback" not in missing.stderr
