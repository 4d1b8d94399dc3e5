"""A run that goes on from a finished one, through the real command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real_runs import SMOKE, SmokeRun, woodshed
from safetensors.numpy import load_file

from woodshed.record.jsonl import read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.rl.conservation import check_conservation
from woodshed.weights.follow import Follower

pytestmark = pytest.mark.slow
SETTINGS = (
    "seed=1",
    "learn.mtp.steps=0",
    "learn.solved.after_rl=true",
    "rl.steps=2",
    "rl.rounds=2",
    "rl.hints.weight=0",
    "evaluate={tasks=1, samples=1, dev_tasks=1, temperatures=[1.0], baselines=false}",
)


def options(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def test_a_run_goes_on_from_a_finished_one_in_two_rounds(smoke: SmokeRun, tmp_path: Path) -> None:
    root, source = tmp_path / "second", f'policy.source="{smoke.root}"'
    done = woodshed(tmp_path, "run", SMOKE, "--out", root, *options(source, *SETTINGS))
    assert done.returncode == 0, done.stdout + done.stderr
    stages = {path.stem for path in (root / "stages").glob("*.json")}
    first = {"rl-round-1", "solved-round-1", "after-round-1"}
    assert stages == {"adopt", "tasks", "before", *first, "rl", "solved", "after"}
    earlier, start = (load_file(p / "model.safetensors") for p in (smoke.root / "policy/final", root / "policy/sft"))
    assert all((earlier[name] == start[name]).all() for name in earlier)
    assert sum(row.get("trained_tokens", 0) for row in read_jsonl(root / "metrics/trainer.jsonl")) > 0
    titles = [arm["title"] for arm in json.loads((root / "summary.json").read_text())["arms"].values()]
    assert titles == ["earlier run", "round 1", "RL, then SFT"]
    check_rounds(root)


def check_rounds(root: Path) -> None:
    """Both rounds are steps of one run; the second samples and trains what the first ended with."""
    assert [row["step"] for row in read_jsonl(root / "metrics/trainer.jsonl")] == [1, 2]
    store = TrajectoryStore(root / "trajectories")
    trained = [t for row in store.rows("source = 'train'") for t in store.group(row["group_id"]) if t.id == row["id"]]
    store.close()
    lines = [read_jsonl(root / f"metrics/{name}.jsonl") for name in ("rollouts", "trainer")]
    check_conservation(root / "state.sqlite", [t.id for t in trained], *lines)
    assert {t.version_range() for t in trained} >= {(0, 0), (1, 1)}
    assert len({t.task for t in trained}) == len({t.group for t in trained}), "a prompt is never used twice"
    anchors = [Follower(root / name).poll() for name in ("weights", "weights-round-2")]
    assert [anchor and anchor[0] for anchor in anchors] == [1, 2]
    assert all((root / name).is_dir() for name in ("checkpoints-round-2", "policy/round-1", "policy/rl-round-1"))
    assert "Held-out tasks by round" in (root / "report.html").read_text()


def test_it_needs_a_finished_run_and_another_seed(smoke: SmokeRun, tmp_path: Path) -> None:
    for source, seed, says in (
        (smoke.root, "seed=0", "never trained twice: --set seed=1"),
        (smoke.before_rl, "seed=1", "is not finished; finish it with `woodshed run"),
    ):
        settings = options(f'policy.source="{source}"', seed)
        refused = woodshed(tmp_path, "run", SMOKE, "--out", tmp_path / "out", *settings)
        assert refused.returncode == 2 and says in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
