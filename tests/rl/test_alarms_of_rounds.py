"""Alarms of a run in rounds (``rl.rounds``): each round starts from another policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from woodshed.rl.health.alarms import firing

from .test_alarms import DEFAULT, Files, healthy, of_step, of_trainer


def another_round(after: int) -> list[dict[str, Any]]:
    """The policy that the second round starts from has learned what was solved: it is surer, and solves more."""
    history = healthy()
    for step in history[after:]:
        of_trainer(entropy=0.2 * step["trainer"]["entropy"])(step)
        of_step(sampled_pass_rate=0.98, edit_rate=0.45, tools={"edit_line": 0.95, "finish": 0.05})(step)
    return history


def test_a_round_is_compared_with_its_own_first_steps(tmp_path: Path) -> None:
    files = Files(tmp_path, another_round(13))
    first = files.watch()
    for number in range(1, 14):
        files.add(number)
        first.look()
    second = files.watch(start=13)
    for number in range(14, 27):
        second.look()
        files.add(number)
    second.look()
    assert files.told() == []
    assert set(firing(another_round(13), DEFAULT)) == {"entropy", "edits", "tools"}, "against those of the first round"
    assert "pass_rate" in firing(another_round(13)[:17], DEFAULT)
    assert firing(another_round(13)[:17], DEFAULT, start=13) == {}


def test_a_collapse_within_the_second_round_is_told_and_a_dead_host_at_once(tmp_path: Path) -> None:
    history = another_round(10)
    for step in history[22:]:
        of_trainer(entropy=0.001)(step)
    for step in history[9:12]:
        of_step(infra_share=0.5)(step)
    files = Files(tmp_path, history)
    for number in range(1, 11):
        files.add(number)
    watch = files.watch(start=10)
    for number in range(11, 27):
        files.add(number)
        watch.look()
    assert files.told() == [(11, "infra", "warn"), (25, "entropy", "warn")]
