"""A run whose recipe names a tool of the user's goes on only with the version that it began with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from woodshed.harness.registry import harness_hash
from woodshed.recipe.load import load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory
from woodshed.run.run import RunError, claim

TOOL = """
from woodshed import Tool, ToolResult


class Hello(Tool):
    name = "hello"

    def description(self):
        return "Say hello."

    async def run(self, args, session):
        return ToolResult("hello")
"""


def test_a_changed_tool_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "hello_tool.py"
    source.write_text(TOOL)
    recipe = load_recipe("smoke", ['harness.tools=["read_file","edit_line","finish","hello_tool:Hello"]'])
    run = RunDirectory(tmp_path / "run")
    with claim(run, recipe, fresh=False):
        begun = harness_hash(recipe.harness)
        store = TrajectoryStore(run.trajectories)
        store.add(Trajectory("a", "t", "g", "eval", begun, "p", "submitted"))
        store.close()
    with claim(run, recipe, fresh=False):
        pass
    source.write_text(TOOL.replace('"hello")', '"hello, again")'))
    monkeypatch.delitem(sys.modules, "hello_tool")
    sys.path_importer_cache.clear()
    for cached in tmp_path.glob("__pycache__/*"):
        cached.unlink()
    with (
        pytest.raises(RunError, match=r"hello_tool:Hello: .* changed since this run began"),
        claim(run, recipe, fresh=False),
    ):
        pass
    with claim(run, recipe, fresh=True):
        assert not run.trajectories.exists()
