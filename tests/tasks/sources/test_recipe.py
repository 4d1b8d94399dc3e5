"""A recipe that names a folder of built tasks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from real_runs import SMOKE, woodshed

from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.task import Task
from woodshed.stages.make_tasks import make_packages
from woodshed.stages.tasks import load_split

from .conftest import Built
from .place import Place


def folder_of(built: Built, folder: Path, *splits: str) -> Path:
    """Copies of built tasks with the splits that are given."""
    for task, split in zip(built.tasks, splits, strict=False):
        shutil.copytree(task.path, folder / task.path.name)
        toml = folder / task.path.name / "task.toml"
        toml.write_text(toml.read_text().replace(f'split = "{task.info.split}"', f'split = "{split}"'))
    return folder


def test_its_tasks_become_those_of_the_run(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(built, tmp_path / "mine", "train", "heldout", "train")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(SMOKE, ["tasks.packages.folder=mine"])
    run = RunDirectory(tmp_path / "run")
    make_packages(recipe, run)
    train, heldout = load_split(run, "packages", "train"), load_split(run, "packages", "heldout")
    assert sorted(t.name for t in (*train, *heldout)) == sorted(t.name for t in built.tasks) and len(train) == 2
    assert train[0].digest == Task.load(tmp_path / "mine" / train[0].path.name).digest
    assert "3 tasks from 1 packages (2 train, 1 held out)" in run.read_result_of("packages")["note"]


def test_too_few_tasks_are_refused_before_anything_starts(place: Place, built: Built, tmp_path: Path) -> None:
    def refused(folder: Path, *more: str) -> str:
        change = ("--set", f"tasks.packages.folder={folder}", *more)
        said = woodshed(place.root, "run", SMOKE, "--out", tmp_path / "out", *change, extra=place.environment)
        assert said.returncode == 2 and "Traceback" not in said.stderr, said.stderr
        assert not (tmp_path / "out").exists()
        return said.stderr

    assert "tasks.packages.folder: " in refused(tmp_path) and "no task.toml" in refused(tmp_path)
    only = folder_of(built, tmp_path / "only", "train", "train")
    assert "has no held-out tasks to evaluate on" in refused(only)
    both = folder_of(built, tmp_path / "both", "train", "heldout")
    main = ("--set", "tasks.main=packages", "--set", 'harness.output.separator=""')
    text = refused(both, *main)
    assert "has 1 training tasks" in text and "needs 8" in text and "lower rl.steps" in text
    main += ("--set", "rl.steps=1", "--set", "rl.groups_per_step=1")
    assert "has no development tasks" in refused(both, *main), "the smoke recipe compares two temperatures"
    blind = refused(both, *main, "--set", "evaluate.temperatures=[1.0]")
    assert "does not name the file to change" in blind and 'add "grep" to harness.tools' in blind
