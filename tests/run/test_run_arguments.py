"""``woodshed run`` refuses arguments that contradict each other, before it changes anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.recipe.load import dump_recipe, load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.run.run import RunError, claim


def test_a_run_directory_is_not_continued_elsewhere(tmp_path: Path) -> None:
    """``--fresh`` deletes no run other than that in ``--out``."""
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    # It is refused even if ``--out`` is not looked at, so that this test starts no run.
    (run / "recipe.toml").write_text(dump_recipe(load_recipe("smoke")).replace('"scratch"', '"/nowhere"'))
    result = CliRunner().invoke(app, ["run", str(run), "--out", str(other), "--fresh"])
    assert result.exit_code == 2 and f"--out {other}: {run} is a run directory" in result.stderr, result.output
    again = CliRunner().invoke(app, ["run", str(run), "--out", f"{other}/../run"])
    assert again.exit_code == 2 and "policy.source: /nowhere" in again.stderr, again.output


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("policy.source", "{}"),
        ("policy.source", "{}/policy/final"),
        ("learn.demonstrations.conversations", '["{}/mine.jsonl"]'),
    ),
)
def test_what_a_run_starts_from_is_not_deleted(tmp_path: Path, field: str, value: str) -> None:
    """The policy that a run starts from may lie in the run itself."""
    (tmp_path / "policy" / "final").mkdir(parents=True)
    (tmp_path / "mine.jsonl").touch()
    recipe = dump_recipe(load_recipe("smoke"))
    (tmp_path / "recipe.toml").write_text(recipe)
    override = f"{field}={value.format(tmp_path)}"
    result = CliRunner().invoke(app, ["run", "smoke", "--out", str(tmp_path), "--fresh", "--set", override])
    assert result.exit_code == 2 and f"{field}: --fresh would delete {tmp_path}" in result.stderr, result.output


def test_a_run_that_was_killed_while_it_wrote_its_recipe_begins_again(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    temporary = tmp_path / ".recipe.toml.0123abcd.tmp"
    temporary.touch()
    run = RunDirectory(tmp_path)
    with claim(run, load_recipe("smoke"), fresh=False):
        assert run.recipe.exists()
    run.recipe.unlink()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match="is not empty"), claim(run, load_recipe("smoke"), fresh=False):
        pass
