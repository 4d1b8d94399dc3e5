"""Checks before a run starts: its bucket answers, and its algorithm can be loaded."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from s3 import S3Server

from woodshed.evaluate.arms import ADOPT
from woodshed.recipe.load import RecipeError, dump_recipe, load_recipe
from woodshed.recipe.recipe import Recipe
from woodshed.record.run_directory import RunDirectory, write_json, write_text
from woodshed.run.run import RunError, _check_folder, check_machine, claim, run_recipe
from woodshed.stages.tasks import is_for_development
from woodshed.weights.chain import Publisher

SMOKE = Path(__file__).parents[2] / "recipes" / "smoke.toml"


def check(url: str, root: Path) -> None:
    check_machine(load_recipe(SMOKE, [f'weights.store="{url}"']), RunDirectory(root))


def test_a_bucket_is_asked_before_anything_starts(tmp_path: Path, s3: S3Server) -> None:
    url = f"s3://woodshed/{tmp_path.name}"
    check(url, tmp_path)
    with pytest.raises(RunError, match=r"weights\.store: .*there is no such bucket; create it"):
        check("s3://absent/x", tmp_path)
    Publisher(url).publish(4, {})
    with pytest.raises(RunError, match="already has versions up to 4, of another run; choose another prefix"):
        check(url, tmp_path)
    write_json(tmp_path / "stages" / "sft.json", {})
    check(url, tmp_path)
    assert RunDirectory(tmp_path).chain(url) == url and RunDirectory(tmp_path).chain("") == str(tmp_path / "weights")


def test_a_run_that_goes_on_from_another_continues_its_own_chain(tmp_path: Path, s3: S3Server) -> None:
    url, earlier, run = f"s3://woodshed/{tmp_path.name}-on", tmp_path / "earlier", RunDirectory(tmp_path / "run")
    write_text(earlier / "recipe.toml", dump_recipe(load_recipe(SMOKE)))
    recipe = load_recipe(SMOKE, [f'policy.source="{earlier}"', "seed=1", f'weights.store="{url}"'])
    for stage in ("tasks", "packages", ADOPT, "before"):
        run.finish_stage(stage, {})
    Publisher(url).publish(3, {})
    check_machine(recipe, run)
    with pytest.raises(RunError, match=r"policy\.source: .*earlier is not finished"):
        check_machine(recipe, run, fresh=True)


def test_a_fresh_run_is_checked_before_an_earlier_one_is_deleted(tmp_path: Path, s3: S3Server) -> None:
    url, run = f"s3://woodshed/{tmp_path.name}-fresh", RunDirectory(tmp_path / "run")
    write_text(run.recipe, dump_recipe(load_recipe(SMOKE)))
    for stage in ("packages", "demos", "sft"):
        run.finish_stage(stage, {})
    Publisher(url).publish(3, {})
    for override, said in (
        ('policy.source="absent"', r"policy\.source: absent has no config\.json"),
        ("learn.demonstrations.conversations=['absent.jsonl']", r"absent\.jsonl: cannot be read"),
        (f'weights.store="{url}"', "already has versions up to 3, of another run"),
    ):
        check_machine(load_recipe(SMOKE, [override]), run)
        with pytest.raises(RunError, match=said):
            run_recipe(SMOKE, out=run.root, overrides=[override], fresh=True, console=Console())
        assert run.stage_result("sft") is not None


def test_a_file_is_no_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match=f"{out} cannot be used as run directory: "):
            run_recipe(SMOKE, out=out, overrides=[], fresh=False, console=Console())
    assert (tmp_path / "file").read_text() == "mine"


def test_an_algorithm_is_loaded_before_anything_starts(tmp_path: Path) -> None:
    for override, said in (
        ('rl.algorithm="nowhere:Mine"', "rl.algorithm: 'nowhere:Mine' cannot be loaded"),
        ('rl.algorithm="json:JSONDecoder"', "is no class that derives from"),
    ):
        with pytest.raises(RunError, match=said):
            check_machine(load_recipe(SMOKE, [override]), RunDirectory(tmp_path))
    for override, said in (
        ('rl.algorithm="grop"', "unknown algorithm 'grop'; known: mean_baseline, leave_one_out, grpo, gspo"),
        ("rl.algorithm_options={std=true}", "rl.algorithm_options: mean_baseline has no option 'std'"),
    ):
        with pytest.raises(RecipeError, match=said):
            load_recipe(SMOKE, [override])


def test_training_tasks_that_are_for_development_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def task(number: int, split: str) -> Any:
        info = SimpleNamespace(split=split, key=f"{split}-{number}", layers=())
        return SimpleNamespace(name=info.key, info=info)

    tasks = [*(task(n, "train") for n in range(48)), task(0, "heldout")]
    aside = sum(map(is_for_development, tasks[:-1]))
    assert 0 < aside < 24
    monkeypatch.setattr("woodshed.run.run.built_tasks", lambda folder: (tasks, ""))
    monkeypatch.setattr("woodshed.run.run.must_search", lambda task: False)

    def recipe(groups: int, temperatures: str) -> Recipe:
        few = [f"rl={{steps={groups}, groups_per_step=1, group_size=4}}", f"evaluate.temperatures={temperatures}"]
        return load_recipe("smollm2", ["tasks.packages.folder=mine", *few])

    _check_folder(recipe(48, "[1.0]"), "mine")
    _check_folder(recipe(48 - aside, "[0.3, 1.0]"), "mine")
    with pytest.raises(RunError, match=rf"has {48 - aside} training tasks besides {aside} for development"):
        _check_folder(recipe(48, "[0.3, 1.0]"), "mine")


@pytest.mark.parametrize("name", ["rename", "rmtree"])
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_run_that_was_half_deleted_is_deleted_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, done: int
) -> None:
    recipe, run, calls = load_recipe(SMOKE), RunDirectory(tmp_path), 0
    real: Any = getattr(Path, name) if name == "rename" else shutil.rmtree

    def interrupted(path: Path, *more: Any, **other: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > done or name == "rmtree":
            for each in list(path.iterdir())[:done] if name == "rmtree" else ():
                real(each) if each.is_dir() else each.unlink()
            raise KeyboardInterrupt
        return real(path, *more, **other)

    write_text(run.recipe, dump_recipe(recipe))
    for folder in ("stages", "policy", "trajectories", "weights"):
        write_text(run.root / folder / "of before", "")
    with monkeypatch.context() as first:
        first.setattr(Path if name == "rename" else shutil, name, interrupted)
        with pytest.raises(KeyboardInterrupt), claim(run, recipe, fresh=True):
            pass
    with claim(run, recipe, fresh=False):
        assert {path.name for path in run.root.iterdir()} == {".lock", "recipe.toml", "held_out.key"}
