"""Commands that read a run name a folder that holds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.recipe.load import dump_recipe, load_recipe


@pytest.mark.parametrize("command", (["report"], ["agent", "--run"]), ids=("report", "agent"))
def test_a_folder_without_a_run_is_named(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "nowhere is not a run directory" in result.stderr and "there are" not in result.stderr


@pytest.mark.parametrize("command", ("report", "monitors"))
def test_a_damaged_index_is_named(tmp_path: Path, command: str) -> None:
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "recipe.toml").write_text(dump_recipe(load_recipe("smoke")))
    (tmp_path / "trajectories" / "index.sqlite").write_bytes(b"torn" * 400)
    result = CliRunner().invoke(app, [command, str(tmp_path)])
    assert result.exit_code == 2 and "index.sqlite is damaged; restore it" in result.stderr, result.output


@pytest.mark.parametrize(
    "command",
    (
        ["benchmark", "build", "{}", "--out", "{}/out", "--trajectories", "{}/trajectories"],
        ["evaluate", "regrade", "{}"],
    ),
    ids=("build", "regrade"),
)
def test_a_damaged_index_is_named_where_its_folder_was_given(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "evaluation.json").write_text("{}")
    (tmp_path / "trajectories" / "index.sqlite").write_bytes(b"torn" * 400)
    result = CliRunner().invoke(app, [word.format(tmp_path) for word in command])
    assert result.exit_code == 2 and "index.sqlite is damaged; restore it" in result.stderr, result.output
