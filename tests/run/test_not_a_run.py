"""Commands that read a run name a folder that holds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.record.store import TrajectoryStore

DAMAGES = pytest.mark.parametrize("damage", ("torn", "cut"))


def damage_index(folder: Path, damage: str) -> None:
    """Make a store whose index is no database, or whose second half is lost."""
    TrajectoryStore(folder).close()
    index = folder / "index.sqlite"
    data = index.read_bytes()
    index.write_bytes(b"torn" * 400 if damage == "torn" else data[: len(data) // 8192 * 4096])


@pytest.mark.parametrize("command", (["report"], ["agent", "--run"]), ids=("report", "agent"))
def test_a_folder_without_a_run_is_named(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "nowhere is not a run directory" in result.stderr and "there are" not in result.stderr


def test_a_report_needs_no_module_that_the_recipe_names(tmp_path: Path) -> None:
    """It may be read on another machine, or in another folder."""
    recipe = dump_recipe(load_recipe("smoke")).replace('main = "synthetic"', 'main = "not_here:source"')
    (tmp_path / "recipe.toml").write_text(recipe)
    TrajectoryStore(tmp_path / "trajectories").close()
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2 and "no evaluation yet" in result.stderr, result.output
    (tmp_path / "recipe.toml").write_text("main = ")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2 and "not valid TOML" in result.stderr, result.output


@DAMAGES
@pytest.mark.parametrize("command", ("report", "monitors"))
def test_a_damaged_index_is_named(tmp_path: Path, command: str, damage: str) -> None:
    damage_index(tmp_path / "trajectories", damage)
    (tmp_path / "recipe.toml").write_text(dump_recipe(load_recipe("smoke")))
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2 and "index.sqlite is damaged; restore it" in result.stderr, result.output


@DAMAGES
@pytest.mark.parametrize(
    "command",
    (
        ["benchmark", "build", "{}", "--out", "{}/out", "--trajectories", "{}/trajectories"],
        ["evaluate", "regrade", "{}"],
    ),
    ids=("build", "regrade"),
)
def test_a_damaged_index_is_named_where_its_folder_was_given(tmp_path: Path, command: list[str], damage: str) -> None:
    damage_index(tmp_path / "trajectories", damage)
    (tmp_path / "evaluation.json").write_text("{}")
    result = CliRunner().invoke(app, [word.format(tmp_path) for word in command])
    assert result.exit_code == 2 and "index.sqlite is damaged; restore it" in result.stderr, result.output
