"""Commands that read a run name a folder that holds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from woodshed.cli.main import app


@pytest.mark.parametrize("command", (["report"], ["agent", "--run"]), ids=("report", "agent"))
def test_a_folder_without_a_run_is_named(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, str(tmp_path / "nowhere")])
    assert result.exit_code == 2
    assert "nowhere is not a run directory" in result.stderr and "there are" not in result.stderr
