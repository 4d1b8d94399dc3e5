"""The benchmarks that learn, on the smoke run's policy: that they run, and what they write. Nothing is learned here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_runs import ROOT, SmokeRun, environment
from waiting import run_to_end

from woodshed.policy.hf import load_policy

pytestmark = pytest.mark.slow


def benchmark(scratch: Path, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    return run_to_end(command, cwd=ROOT, env=environment(scratch))


def test_trials_of_rl(smoke: SmokeRun) -> None:
    """Forks, credit by attempt and hints at once; every figure is a number, and the policy at the end is saved."""
    out, saved = smoke.scratch / "trial.jsonl", smoke.scratch / "trained"
    tasks = smoke.root / "tasks"
    given = ["--tasks", tasks / "synthetic-train", "--dev", tasks / "synthetic-dev", "--out", out, "--save", saved]
    sizes = ["--steps=10", "--every=10", "--prompts=2", "--group=2", "--eval=1", "--samples=1"]
    signals = ["--forks=1", "--hints=0.1", "--credit=attempts", "--rejected=0.1"]
    done = benchmark(smoke.scratch, "research.py", smoke.root, *given, *sizes, *signals)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [("dev at 1", 0), ("train", 10), ("dev at 1", 10)]
    for name, value in [item for row in rows for item in row.items() if item[0] != "kind"]:
        assert math.isfinite(value) if value is not None else name in ("first", "later"), name  # rates of no attempts
    trained = rows[1]
    assert trained["hint_tokens"] > 0 and trained["hint_kl"] >= 0 and "hints/invalid_arguments" in trained
    assert load_policy(saved).version == 10


def test_our_side_of_the_comparison_with_trl(smoke: SmokeRun) -> None:
    """TRL itself is not installed for tests."""
    out = smoke.scratch / "ours.json"
    given = ["--run", smoke.root, "--side=ours", "--steps=2", "--threads=1", "--out", out]
    done = benchmark(smoke.scratch, "trl_grpo.py", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(out.read_text())
    assert len(rows) == 2 and 0 < rows[0][0] < rows[1][0] and all(0 <= reward <= 1 for _, reward in rows)
