"""The report plots every metric that an alarm reads, also of runs in which a step trained nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from woodshed.record.jsonl import read_jsonl
from woodshed.view.health import health_section
from woodshed.view.report import _curves

HEALTHY = Path(__file__).parents[1] / "rl" / "healthy"


def test_what_the_alarms_read_is_plotted(tmp_path: Path) -> None:
    shutil.copytree(HEALTHY, tmp_path / "metrics")
    page = health_section(None, None, tmp_path / "metrics")
    alone = ("share of groups that teach nothing", "entropy, nats per token", "effective sample size, share of tokens")
    for name in (*alone, "p99", "infrastructure errors", "at a limit", "solved", "edit rate", "effective tools"):
        assert f"<!-- {name} -->" in page, name


def test_a_step_without_trained_tokens_hides_no_curve() -> None:
    steps, trainer = (read_jsonl(HEALTHY / f"{name}.jsonl") for name in ("rollouts", "trainer"))
    trainer[0] = {key: value for key, value in trainer[0].items() if key != "k3"}
    assert "<!-- train/rollout mismatch k3 -->" in _curves(steps, trainer, ())
