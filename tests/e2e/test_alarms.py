"""A run that an alarm pauses, and that goes on after its setting is changed, through the real command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from real_runs import STEPS, SmokeRun, woodshed

from tests.chaos.records import check_conservation, check_ledger, check_trajectories
from woodshed.record.jsonl import read_jsonl

pytestmark = pytest.mark.slow


def test_an_alarm_pauses_a_run_and_a_changed_setting_continues_it(smoke: SmokeRun, tmp_path: Path) -> None:
    root = tmp_path / "run"
    smoke.copy_before_rl(root)
    # Whatever the entropy is, it is below a thousand times that of the first step.
    sharp = ("baseline=1", "window=1", 'entropy="pause"', "entropy_floor=1000")
    paused = woodshed(tmp_path, "run", root, *(part for each in sharp for part in ("--set", f"rl.alarms.{each}")))
    assert paused.returncode == 2, paused.stdout
    assert "the alarm rl.alarms.entropy paused the run after step 2 of" in paused.stderr
    for part in ("Look at the report", "--set rl.alarms.entropy=", "the same command continues the run"):
        assert part in paused.stderr
    assert "Traceback" not in paused.stderr
    assert not (root / "stages" / "rl.json").exists() and len(read_jsonl(root / "metrics" / "rollouts.jsonl")) >= 2
    told = read_jsonl(root / "metrics" / "alarms.jsonl")
    assert [(row["step"], row["alarm"], row["action"]) for row in told] == [(2, "entropy", "pause")]

    shown = woodshed(tmp_path, "report", root)
    assert shown.returncode == 0 and "rollouts dispatched = " in shown.stdout
    page = (root / "report.html").read_text()
    assert "<h2>Health of RL</h2>" in page and "the entropy of the policy is" in page

    finished = woodshed(tmp_path, "run", root, "--set", 'rl.alarms.entropy="warn"')
    assert finished.returncode == 0, finished.stderr
    assert "alarm entropy (warn), step" in finished.stdout and "rollouts dispatched = " in finished.stdout
    assert tomllib.loads((root / "recipe.toml").read_text())["rl"]["alarms"]["entropy"] == "warn"
    for check in (check_ledger, check_conservation, check_trajectories):
        check(root)
    rollouts = json.loads((root / "summary.json").read_text())["rollouts"]
    assert rollouts["error"] == "" and rollouts["undecided"] == 0 and rollouts["trained"] > 0
    assert rollouts["dispatched"] == rollouts["trained"] + sum(rollouts["dropped"].values())
    assert "They add up" in (root / "report.html").read_text()
    lines = read_jsonl(root / "metrics" / "rollouts.jsonl")
    assert len(lines) == STEPS and all(0 <= line["slots_busy"] <= 1 for line in lines)

    other = woodshed(tmp_path, "run", root, "--set", "rl.group_size=5")
    assert other.returncode == 2 and "rl.group_size" in other.stderr, "no other setting of a run can be changed"
