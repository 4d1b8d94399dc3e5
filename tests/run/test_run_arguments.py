"""``woodshed run`` refuses arguments that contradict each other, before it changes anything."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from woodshed.cli.main import app
from woodshed.recipe.load import dump_recipe, load_recipe


def test_a_run_directory_is_not_continued_elsewhere(tmp_path: Path) -> None:
    """With ``--fresh`` the run itself was deleted, whatever ``--out`` said."""
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    # It is refused even if ``--out`` is not looked at, so that this test starts no run.
    (run / "recipe.toml").write_text(dump_recipe(load_recipe("smoke")).replace('"scratch"', '"/nowhere"'))
    result = CliRunner().invoke(app, ["run", str(run), "--out", str(other), "--fresh"])
    assert result.exit_code == 2 and f"--out {other}: {run} is a run directory" in result.stderr, result.output
    again = CliRunner().invoke(app, ["run", str(run), "--out", f"{other}/../run"])
    assert again.exit_code == 2 and "policy.source: /nowhere" in again.stderr, again.output
