"""How long a stage takes."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from woodshed.cluster.supervisor import Program
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.run import run as running
from woodshed.run.placed import PlacedBoxes
from woodshed.run.plan import Stage


def test_a_clock_that_is_set_back_does_not_shorten_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set back by an hour during a stage."""
    run, recipe = RunDirectory(tmp_path), load_recipe("smoke")
    set_back = tmp_path / "set-back"
    source = f"import pathlib, time; pathlib.Path({str(set_back)!r}).touch(); time.sleep(0.5)"
    stage = Stage("one", "one", (), lambda: [Program("one", ["-c", source], run.log("one"))], ("one",))
    monkeypatch.setattr(running, "plan", lambda recipe, run: [stage])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - (3600 if set_back.exists() else 0))
    run.write_clock({"one": 100.0})  # before an interruption
    running._run_stages(recipe, run, Console(file=io.StringIO()), PlacedBoxes(recipe.sandbox, run))
    result = run.stage_result("one")
    assert result is not None and result["seconds"] > 100
