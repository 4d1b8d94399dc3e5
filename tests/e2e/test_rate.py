"""``woodshed tasks rate`` as a person gives it: a run's own policy in its own harness, and what the run has stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from real_runs import GROUP_SIZE, SmokeRun, woodshed

from woodshed.record.history import read_history
from woodshed.record.task import Task

pytestmark = pytest.mark.slow


def test_a_policy_of_a_run_and_the_run_itself(smoke: SmokeRun, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    for split in ("synthetic-heldout", "synthetic-train"):
        shutil.copytree(smoke.root / "tasks" / split, folder / split)
    policy = smoke.root / "policy" / "final"
    arguments = ("tasks", "rate", folder, "--policy", policy, "-k", "1", "--split", "heldout", "--json")
    done = woodshed(smoke.scratch, *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["new"]) == 4 and found["lost"] == 0 and found["left_out"] == {}
    assert all(row["rollouts"] == 1 and row["version"] == 4 and len(row["checkpoint"]) == 16 for row in found["new"])
    assert (folder / ".rollouts" / "index.sqlite").exists(), "in the folder that was given, whatever lies first in it"
    done = woodshed(smoke.scratch, "tasks", "rate", folder, "--from", smoke.root)
    assert done.returncode == 0, done.stderr
    assert "(train, version " in done.stdout and "(before, version 0)" in done.stdout
    train = [Task.load(path.parent) for path in sorted((folder / "synthetic-train").glob("*/task.toml"))]
    rated = [read_history(task).ratings for task in train]
    assert any(rated) and all(r.rollouts == GROUP_SIZE for each in rated for r in each)
