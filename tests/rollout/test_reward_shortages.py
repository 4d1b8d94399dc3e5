"""A shortage of this machine while a reward is computed: it neither ends the run nor counts against the policy."""

from __future__ import annotations

import asyncio
import errno
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from woodshed.record.fault import HostFault
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout import rollout as rollouts
from woodshed.rollout.failures import FAULT, RETRIED
from woodshed.rollout.rewards import RewardError, RewardFunction, TermSettings, reward_function, style

YES = Outcome(resolved=True)
RUN = Trajectory("i", "t", "g", "train", "h", "p", "submitted", changed={"a.py": "import os\n"})
Ruff = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "environment" / "workspace").mkdir(parents=True)
    return Task(tmp_path, "tests/toy", "repair it", TaskInfo(), {})


@pytest.fixture
def reward(task: Task) -> RewardFunction:
    made = reward_function({"style": TermSettings(weight=1.0)})
    assert made(task, RUN, YES) == {"style": -1.0}
    return made


def failing_first(monkeypatch: pytest.MonkeyPatch, failure: Callable[[], Any], times: int) -> list[None]:
    """Let the first ``times`` programs that are started end as ``failure`` says; the list grows with each start."""
    run, started = subprocess.run, list[None]()

    def stopped(*args: Any, **options: Any) -> Any:
        started.append(None)
        return failure() if len(started) <= times else run(*args, **options)

    monkeypatch.setattr(style.subprocess, "run", stopped)
    return started


def too_slow() -> None:
    raise subprocess.TimeoutExpired("ruff", 30)


def killed() -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(["ruff"], -9, "", "")


def no_process() -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("failure", [too_slow, killed])
def test_ruff_that_was_stopped_once_says_nothing_about_the_code(
    failure: Callable[[], Any], task: Task, reward: RewardFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = failing_first(monkeypatch, failure, 1)
    assert reward(task, RUN, YES) == {"style": -1.0} and len(started) == 2
    started = failing_first(monkeypatch, failure, 2)
    assert reward(task, RUN, YES) == {"style": -5.0} and len(started) == 2, "made to stop ruff: broken code"


@pytest.mark.parametrize("failure", [too_slow, killed])
def test_rules_that_cannot_be_checked_are_a_failure_of_the_machine(
    failure: Callable[[], Any], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = reward_function({"style": TermSettings(weight=1.0, options={"select": "F401"})})
    style._check_rules.cache_clear()
    failing_first(monkeypatch, failure, 2)
    with pytest.raises(HostFault, match="stopped ruff"):
        own(task, RUN, YES)
    style._check_rules.cache_clear()
    failing_first(monkeypatch, failure, 1)
    assert own(task, RUN, YES) == {"style": -1.0}


def test_a_shortage_is_raised_as_it_is(task: Task, reward: RewardFunction, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_first(monkeypatch, no_process, 1)
    with pytest.raises(BlockingIOError):
        reward(task, RUN, YES)
    assert reward(task, RUN, YES) == {"style": -1.0}

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        reward(task, RUN, YES)


def lost(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    raise HostFault("gone")


def absent(task: Task, trajectory: Trajectory, outcome: Outcome) -> float:
    return float((task.path / "prices.txt").read_text())


def test_other_errors_of_a_term_still_stop_the_run(task: Task) -> None:
    with pytest.raises(HostFault, match="gone"):
        reward_function({f"{__name__}:lost": TermSettings(weight=1.0)})(task, RUN, YES)
    with pytest.raises(RewardError, match="FileNotFoundError"):
        reward_function({f"{__name__}:absent": TermSettings(weight=1.0)})(task, RUN, YES)


@pytest.mark.parametrize(("times", "resolved"), [(1, True), (9, False)])
def test_a_rollout_is_tried_again(
    times: int, resolved: bool, task: Task, reward: RewardFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def attempt(arena: Any, task: Task, **options: Any) -> Trajectory:
        return replace(RUN, outcome=YES, rewards=await asyncio.to_thread(arena.reward, task, RUN, YES))

    async def at_once(*args: Any) -> None:
        pass

    monkeypatch.setattr(rollouts, "_attempt", attempt)
    monkeypatch.setattr(rollouts.asyncio, "sleep", at_once)
    failing_first(monkeypatch, no_process, times)
    admin = SimpleNamespace(wait_until_up=at_once, delete=at_once)
    arena: Any = SimpleNamespace(attempts=2, patience=1.0, admin=admin, reward=reward, harness_hash="h", policy="p")
    made = asyncio.run(rollouts.rollout(arena, task, id="i", group="g", source="train"))
    if resolved:
        assert made.rewards == {"style": -1.0} and made.labels == {RETRIED: "host"} and made.attempts == 2
    else:
        assert made.status == "infra_error" and made.labels == {FAULT: "host"} and not made.rewards
