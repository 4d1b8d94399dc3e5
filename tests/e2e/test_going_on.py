"""A run that goes on from a finished one, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_runs import SMOKE, SmokeRun, woodshed
from safetensors.numpy import load_file

from woodshed.record.jsonl import read_jsonl

pytestmark = pytest.mark.slow
SETTINGS = (
    "seed=1",
    "learn.mtp.steps=0",
    "learn.solved.after_rl=true",
    "rl.steps=1",
    "rl.hints.weight=0",
    "evaluate={tasks=1, samples=1, dev_tasks=1, temperatures=[1.0], baselines=false}",
)


def options(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def test_a_run_goes_on_from_a_finished_one(smoke: SmokeRun, tmp_path: Path) -> None:
    root, source = tmp_path / "second", f'policy.source="{smoke.root}"'
    done = woodshed(tmp_path, "run", SMOKE, "--out", root, *options(source, *SETTINGS))
    assert done.returncode == 0, done.stdout + done.stderr
    stages = {path.stem for path in (root / "stages").glob("*.json")}
    assert stages == {"adopt", "tasks", "before", "rl", "solved", "after"}
    earlier, start = (load_file(p / "model.safetensors") for p in (smoke.root / "policy/final", root / "policy/sft"))
    assert all((earlier[name] == start[name]).all() for name in earlier)
    assert sum(row.get("trained_tokens", 0) for row in read_jsonl(root / "metrics/trainer.jsonl")) > 0
    titles = [arm["title"] for arm in json.loads((root / "summary.json").read_text())["arms"].values()]
    assert titles == ["earlier run", "RL, then SFT"]


def test_it_needs_a_finished_run_and_another_seed(smoke: SmokeRun, tmp_path: Path) -> None:
    for source, seed, says in (
        (smoke.root, "seed=0", "never trained twice: --set seed=1"),
        (smoke.before_rl, "seed=1", "is not finished; finish it with `woodshed run"),
    ):
        settings = options(f'policy.source="{source}"', seed)
        refused = woodshed(tmp_path, "run", SMOKE, "--out", tmp_path / "out", *settings)
        assert refused.returncode == 2 and says in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
