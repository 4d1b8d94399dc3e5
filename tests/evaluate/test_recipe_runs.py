"""The figures of whole runs (``benchmarks/recipe_runs.py``) where one evaluation lost samples."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from woodshed.evaluate.run import group_name
from woodshed.recipe.load import BUILTIN, dump_recipe, load_recipe
from woodshed.record.run_directory import RunDirectory
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.failures import INFRA

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from async_rl import branch
from recipe_runs import figures_of, learned, over_seeds


def run_in(root: Path, lost: int) -> RunDirectory:
    """A run whose evaluations have 8 tasks x 4 samples, of which the last passes; ``before`` lost samples of a task."""
    run = RunDirectory(root)
    store = TrajectoryStore(run.trajectories)
    run.recipe.write_text(dump_recipe(load_recipe(BUILTIN / "smoke.toml")))
    for name in ("before", "after"):
        for task, sample in ((task, sample) for task in range(8) for sample in range(4)):
            group = group_name(name, f"t/{task}")
            gone = name == "before" and task == 0 and sample < lost
            status, outcome = (INFRA, None) if gone else ("submitted", Outcome(sample == 3))
            id = f"{group}:{sample:02d}"
            store.add(Trajectory(id, f"t/{task}", group, "eval", "h", "p", status, outcome=outcome))
        run.finish_stage(name, {"temperature": 1.0, "dev_pass1": {}})
    store.close()
    return run


def test_best_of_k_is_named_by_the_k_that_is_compared(tmp_path: Path) -> None:
    found = learned(run_in(tmp_path / "a", lost=2))
    figures = figures_of(found)
    assert figures["best2_change_min"] == pytest.approx(-0.5 / 8) and "best4_change_min" not in figures
    for policy in found.detail()["policies"].values():
        assert "best2" in policy and "best4" not in policy
    whole = figures_of(learned(run_in(tmp_path / "b", lost=0)))
    joined = over_seeds([figures, whole])
    assert joined["best2_change_min"] is None and joined["best4_change_min"] is None and joined["heldout_tasks"] == 8


def test_a_copy_of_a_run_has_its_demonstrations(tmp_path: Path) -> None:
    base = run_in(tmp_path / "base", lost=0)
    base.demonstrations.mkdir()
    base.examples(verified=True).write_bytes(b"examples")
    branch(base.root, tmp_path / "copy", ["rl.steps=1"])
    copy = RunDirectory(tmp_path / "copy")
    assert copy.examples(verified=True).read_bytes() == b"examples"
    assert load_recipe(copy.recipe).rl.steps == 1 and copy.stage_result("before") is None
