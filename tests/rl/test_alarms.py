"""Each alarm fires on a history that has what it looks for, and all are silent on that of a real, healthy run.

``healthy/`` has the metrics of 26 steps of the laptop recipe (seed 0).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from woodshed.record.jsonl import read_jsonl
from woodshed.record.segment import Segment
from woodshed.record.trajectory import Effort, ExitStatus, Fork, ToolEvent, Trajectory
from woodshed.rl.health.alarms import ADVICE, LEARNING, LIVENESS, firing, stalled
from woodshed.rl.health.measure import effective_tools, flat_share, infra_share, join, measure
from woodshed.rl.health.settings import AlarmSettings
from woodshed.rl.health.watch import HealthWatch, read_alarms
from woodshed.rl.settings import RLSettings
from woodshed.rollout.failures import FAULT, INFRA, RunPaused
from woodshed.sandbox.backends.namespace.backend import probe_namespace
from woodshed.view.plots import lines
from woodshed.view.tensorboard import event

from .trained import by_number, trained

FOLDER = Path(__file__).parent / "healthy"
ROLLOUTS, TRAINER = read_jsonl(FOLDER / "rollouts.jsonl"), read_jsonl(FOLDER / "trainer.jsonl")
DEFAULT = AlarmSettings()


def healthy() -> list[dict[str, Any]]:
    return json.loads(json.dumps(join(ROLLOUTS, TRAINER)))


def test_a_healthy_run_is_silent_after_every_step() -> None:
    history = healthy()
    assert len(history) == 26 and all("trainer" in step for step in history)
    for length in range(1, len(history) + 1):
        assert firing(history[:length], DEFAULT) == {}, length
    moments = [step["time"] for step in history]
    for length in range(1, len(history)):
        assert stalled(moments[:length], moments[length - 1], moments[length], DEFAULT) == ""


def of_trainer(**values: float) -> Callable[[dict[str, Any]], None]:
    return lambda step: step["trainer"].update(values)


def of_step(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda step: step.update(values)


BROKEN: dict[str, list[tuple[Callable[[dict[str, Any]], None], str]]] = {
    "infra": [(of_step(infra_share=0.2), "20% of the rollouts")],
    "flat": [
        (of_step(zero_groups=9), "75% of the groups have equal rewards"),
        (of_step(zero_groups=0, flat_groups=18), "60% of the groups"),
    ],
    "truncation": [(of_step(limit_share=0.9), "90% of the episodes ended at a limit")],
    "entropy": [(of_trainer(entropy=0.01), "the entropy of the policy is 0.01 nats per token, below 0.3 of that")],
    "ratio": [
        (of_trainer(ess=0.05), "the effective sample size is 0.05"),
        (of_trainer(ratio_p99=40.0), "the 99th percentile of the policy ratio is 40"),
        (of_trainer(ess=math.nan), "the effective sample size is nan"),
        (of_trainer(ratio_p99=math.nan), "the 99th percentile of the policy ratio is nan"),
    ],
    "mismatch": [
        (of_trainer(staleness_max=0.0, k3=0.02), "with the same weights is 0.02, not at most 0.001"),
        (of_trainer(staleness_max=0.0, k3=math.nan), "with the same weights is nan"),
        (of_trainer(replay_refused_share=0.027), "2.7% of the engine's experts"),
    ],
    "pass_rate": [
        (of_step(sampled_pass_rate=0.99), "the pass rate went from 0.66 to 0.99"),
        (of_step(sampled_pass_rate=0.02), "the pass rate went from 0.66 to 0.02"),
    ],
    "edits": [(of_step(edit_rate=0.2), "the share of episodes with an edit is 0.20")],
    "tools": [
        (of_step(tools={"run_command": 0.98, "read_file": 0.02}), "is 1.10, below 0.5"),
        (of_step(tools={"run_command": 1.0}), "run_command has 100% of the calls"),
    ],
}


@pytest.mark.parametrize("name", [*LIVENESS, *LEARNING])
def test_an_alarm_fires_on_what_it_is_for_and_alone(name: str) -> None:
    for change, message in BROKEN[name]:
        history = healthy()
        for step in history[-DEFAULT.window :]:
            change(step)
        found = firing(history, DEFAULT)
        assert list(found) == [name] and message in found[name], found
        assert firing(history[: -DEFAULT.window], DEFAULT) == {}
        assert firing(history, AlarmSettings(**{name: "off"})) == {}
    assert name in ADVICE


def test_a_step_without_calls_says_nothing_about_the_tool_mix() -> None:
    history = healthy()
    for step in history[-4:]:
        of_step(tools={"run_command": 1.0})(step)
    assert "run_command has 100% of the calls" in firing(history, DEFAULT)["tools"]
    silent = [*history, {**history[-1], "tools": {}}]
    assert firing(silent, DEFAULT)["tools"] == firing(history, DEFAULT)["tools"]
    assert firing([{**step, "tools": {}} for step in history], DEFAULT) == {}


def test_a_mismatch_is_seen_at_the_first_step_and_is_none_where_tokens_are_stale() -> None:
    history = healthy()
    of_trainer(k3=0.02)(history[0])
    assert list(firing(history[:1], DEFAULT)) == ["mismatch"] and history[0]["trainer"]["staleness_max"] == 0
    assert firing(history[:2], DEFAULT) == {}, "a later step is judged by itself"
    of_trainer(k3=0.02)(history[1])
    assert firing(history[:2], DEFAULT) == {} and history[1]["trainer"]["staleness_max"] == 1


def test_liveness_comes_first() -> None:
    history = healthy()
    for step in history[-4:]:
        of_trainer(entropy=0.0)(step)
        of_step(limit_share=1.0, infra_share=1.0)(step)
    assert list(firing(history, DEFAULT)) == ["infra", "truncation", "entropy"]


def test_a_stall_is_relative_to_the_usual_time() -> None:
    moments = [0.0, 100.0, 220.0, 310.0, 430.0]  # median 110 s
    assert stalled(moments, 430.0, 430.0 + 6 * 110, DEFAULT) == ""
    assert "661 s; usually a batch takes 110 s" in stalled(moments, 430.0, 430.0 + 661, DEFAULT)
    assert stalled(moments, 800.0, 430.0 + 661, DEFAULT) == "", "something was trained meanwhile"
    assert stalled(moments[:3], 220.0, 1e6, DEFAULT) == "", "nothing is usual yet"
    assert stalled([0.0, 1.0, 2.0, 3.0], 3.0, 100.0, DEFAULT) == "" != stalled([0, 1, 2, 3], 3, 124, DEFAULT)


def segment(versions: list[int]) -> Segment:
    n = len(versions)
    sampled = np.asarray(versions) >= 0
    return Segment(np.arange(n, dtype=np.int32), sampled, np.full(n, -1, np.float32), np.asarray(versions, np.int32))


def episode(id: str, status: ExitStatus, versions: list[list[int]], calls: str = "", **effort: int) -> Trajectory:
    events = [ToolEvent(0, name, {}, "") for name in calls.split()]
    segments = [segment(v) for v in versions]
    made = Trajectory(
        id, "t", "g", "train", "h", "p", status, segments=segments, events=events, effort=Effort(**effort)
    )
    return made


def test_figures_of_a_batch() -> None:
    groups = [
        [
            episode("a", "submitted", [[-1, 4, 4, 5], [-1, 3]], "read edit", edits=2, summaries=1),
            episode("b", "limit", [[-1, 4, 4], [-1, -1]], "read run run"),
        ],
        [episode("c", "infra_error", []), episode("d", "timeout", [[-1, 5]], "read")],
    ]
    found = measure(groups, step=6)
    assert found["tools"] == {"edit": 1 / 6, "read": 3 / 6, "run": 2 / 6}
    assert found["edit_rate"] == pytest.approx(1 / 3) and found["limit_share"] == pytest.approx(2 / 3)
    assert infra_share(groups) == 0.25 and found["summaries"] == pytest.approx(1 / 3)
    assert found["staleness_histogram"] == {"0": 2 / 7, "1": 4 / 7, "2": 1 / 7}
    assert found["mixed_version_share"] == 1 / 4, "segments without a sampled token count for nothing"
    assert measure([[episode("c", "infra_error", [])]], 1)["limit_share"] == 0.0
    assert effective_tools({"tools": {"a": 0.25, "b": 0.25, "c": 0.5}}) == pytest.approx(2 ** (1.5))
    assert effective_tools({}) is None
    assert flat_share({"groups": 4, "zero_groups": 1, "flat_groups": 4}) == 5 / 8


def test_figures_of_episodes_leave_out_forks() -> None:
    """A fork repeats a part of its root. An abandoned one is no fault of the infrastructure."""
    root = episode("a", "submitted", [[-1, 4]], "read edit", edits=1)
    forks = [
        replace(episode(f"a.f{n}", status, versions, "run run"), fork=Fork("a", 1, 0, 1), attempts=2, labels=labels)
        for n, (status, versions, labels) in enumerate((("limit", [[-1, 3]], {}), (INFRA, [], {FAULT: "replay"})))
    ]
    found = measure([[root, *forks]], step=6)
    assert found["tools"] == {"read": 0.5, "edit": 0.5} and found["limit_share"] == 0 and found["edit_rate"] == 1
    assert found["staleness_histogram"] == {"1": 0.5, "2": 0.5} and found["retried_share"] == 0.5
    assert infra_share([[root, *forks]]) == 0 and infra_share([[root, episode("b", INFRA, [])]]) == 0.5


def test_a_share_at_its_limit_is_silent() -> None:
    history = healthy()
    for step in history[-DEFAULT.window :]:
        of_step(infra_share=DEFAULT.infra_share, limit_share=DEFAULT.truncation_share)(step)
        of_step(groups=12, zero_groups=6, flat_groups=0)(step)
    assert firing(history, DEFAULT) == {}


def test_nothing_fires_before_its_windows_are_full() -> None:
    history = healthy()
    for step in history:
        of_trainer(entropy=1.0)(step)
    few = history[: DEFAULT.window - 1]
    for step in few:
        of_step(infra_share=1.0)(step)
    assert firing(few, DEFAULT) == {}
    history = history[DEFAULT.window :]
    for step in history[:4]:  # mean of the first eight: 2.5
        of_trainer(entropy=4.0)(step)
    assert firing(history, DEFAULT) == {}
    for step in history[DEFAULT.baseline :]:
        of_trainer(entropy=0.01)(step)
    assert firing(history[: DEFAULT.baseline + DEFAULT.window - 1], DEFAULT) == {}
    assert list(firing(history[: DEFAULT.baseline + DEFAULT.window], DEFAULT)) == ["entropy"]


def test_both_files_are_joined_by_step_and_idle_shares_are_of_the_step() -> None:
    rollouts = [
        {"step": 2, "engine": {"busy_seconds": 9.0, "uptime_seconds": 20.0}, "slots_busy": 0.75},
        {"step": 1, "engine": {"busy_seconds": 4.0, "uptime_seconds": 10.0}},
        {"step": 3, "engine": {"busy_seconds": 1.0, "uptime_seconds": 4.0}},  # started again
    ]
    steps = join(rollouts, [{"step": 2, "idle_seconds": 1.0, "busy_seconds": 3.0}, {"step": 9}])
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert ["trainer" in step for step in steps] == [
        False,
        True,
        False,
    ]
    assert steps[0]["idle"] == {"engine": pytest.approx(0.6)}
    assert steps[1]["idle"] == {"engine": pytest.approx(0.5), "slots": 0.25, "trainer": 0.25}
    assert steps[2]["idle"] == {"engine": pytest.approx(0.75)}


def test_counters_that_were_read_once_say_nothing_about_a_second_batch() -> None:
    """Two batches are formed before the next version is loaded, at which the engine's counters are read."""
    counters = [(4.0, 10.0), (9.0, 20.0), (9.0, 20.0), (10.0, 30.0)]
    rollouts = [
        {"step": step, "engine": {"busy_seconds": busy, "uptime_seconds": uptime}}
        for step, (busy, uptime) in enumerate(counters, 1)
    ]
    idle = [step["idle"].get("engine") for step in join(rollouts, [])]
    assert idle == [pytest.approx(0.6), pytest.approx(0.5), None, pytest.approx(0.9)]
    rollouts[1]["engine"] = {}  # the server did not answer
    assert [step["idle"].get("engine") for step in join(rollouts[:3], [])] == [pytest.approx(0.6), None, 0.5]


class Files:
    """Metrics that appear step by step."""

    def __init__(self, folder: Path, history: list[dict[str, Any]]) -> None:
        self.folder, self.history = folder, history
        self.now = history[0]["time"]

    def watch(self, *, start: int = 0, **settings: Any) -> HealthWatch:
        return HealthWatch(
            AlarmSettings(**settings),
            start=start,
            steps=len(self.history),
            rollouts=self.folder / "rollouts.jsonl",
            trainer=self.folder / "trainer.jsonl",
            log=self.folder / "alarms.jsonl",
            clock=lambda: self.now,
        )

    def add(self, number: int) -> None:
        step = dict(self.history[number - 1])
        trained = step.pop("trainer")
        self.now = step["time"]
        for name, line in (("rollouts", step), ("trainer", trained)):
            with (self.folder / f"{name}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def told(self) -> list[tuple[int, str, str]]:
        return [(row["step"], row["alarm"], row["action"]) for row in read_alarms(self.folder / "alarms.jsonl")]


def collapsed(after: int) -> list[dict[str, Any]]:
    history = healthy()
    for step in history[after:]:
        of_trainer(entropy=0.001)(step)
    return history


def test_a_warning_is_told_once(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(16))
    watch = files.watch()
    for number in range(1, 27):
        files.add(number)
        watch.look()
        watch.look()
    assert files.told() == [(19, "entropy", "warn")]


def test_another_process_tells_of_the_newest_step_only(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(16))
    watch = files.watch()
    for number in range(1, 26):
        files.add(number)
        watch.look()
    files.watch().look()
    assert files.told() == [(19, "entropy", "warn"), (25, "entropy", "warn")]


def test_a_run_that_is_through_does_not_stall(tmp_path: Path) -> None:
    files = Files(tmp_path, healthy())
    watch = files.watch()
    for number in range(1, 27):
        files.add(number)
    files.now += 1000
    watch.look()
    assert files.told() == []


def test_a_pause_ends_the_run_and_again_at_the_next_step(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(16))
    watch = files.watch(entropy="pause")
    for number in range(1, 19):
        files.add(number)
        watch.look()
    files.add(19)
    with pytest.raises(RunPaused, match=r"rl\.alarms\.entropy paused the run after step 19 of 26: the entropy "):
        watch.look()
    again = files.watch(entropy="pause")
    again.look()  # what was told is not told again
    files.add(20)
    with pytest.raises(RunPaused, match=r'RUN --set rl\.alarms\.entropy="warn"'):
        again.look()
    on = files.watch(entropy="warn")
    for number in range(21, 27):
        files.add(number)
        on.look()
    assert files.told() == [(19, "entropy", "pause"), (20, "entropy", "pause"), (21, "entropy", "warn")]


def test_a_step_trained_while_the_run_paused_is_looked_at_by_the_next_process(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(16))
    watch = files.watch(entropy="pause")
    for number in range(1, 20):
        files.add(number)
        if number < 19:
            watch.look()
    with pytest.raises(RunPaused, match="after step 19 of 26"):
        watch.look()
    files.add(20)
    again = files.watch(entropy="pause")
    again.look()  # told, but the run goes on: it trains a step before it pauses again
    assert files.told() == [(19, "entropy", "pause"), (20, "entropy", "warn")]
    files.add(21)
    with pytest.raises(RunPaused, match="after step 21 of 26"):
        again.look()


def test_a_step_trained_after_a_process_stopped_is_looked_at_by_the_next(tmp_path: Path) -> None:
    """The trainer finishes its step when a run is stopped; only the first one shows a mismatch for certain."""
    history = healthy()
    of_trainer(k3=0.02)(history[0])
    files = Files(tmp_path, history)
    files.watch(mismatch="pause").look()
    files.add(1)
    for _ in range(2):
        files.watch(mismatch="pause").look()
    assert files.told() == [(1, "mismatch", "warn")]
    files.add(2)
    files.watch(mismatch="pause").look()
    assert files.told() == [(1, "mismatch", "warn")]


def test_nothing_is_paused_after_the_last_step(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(23))
    watch = files.watch(entropy="pause")
    for number in range(1, 27):
        files.add(number)
        watch.look()
    assert files.told() == [(26, "entropy", "warn")]


def test_an_earlier_step_does_not_pause_a_run_that_is_through(tmp_path: Path) -> None:
    files = Files(tmp_path, collapsed(21))
    watch = files.watch(entropy="pause")
    for number in range(1, 27):
        files.add(number)
    watch.look()
    assert files.told() == [(24, "entropy", "warn")]


def test_a_stall_is_told_while_it_lasts_and_again_when_another_begins(tmp_path: Path) -> None:
    files = Files(tmp_path, healthy())
    watch = files.watch()
    for number in range(1, 11):
        files.add(number)
        watch.look()
    for _ in range(3):
        files.now += 1000
        watch.look()
    files.add(11)
    watch.look()
    files.now += 1000
    watch.look()
    assert files.told() == [(10, "stall", "warn"), (11, "stall", "warn")]
    again = files.watch()  # another process, and another stall
    files.now += 1000
    again.look()
    assert files.told() == [(10, "stall", "warn"), *[(11, "stall", "warn")] * 2]
    with pytest.raises(RunPaused, match="nothing was decided or trained for"):
        paused = files.watch(stall="pause")
        files.now += 1000
        paused.look()


def test_a_stall_that_a_late_line_does_not_end_is_told_once(tmp_path: Path) -> None:
    """The line of a step has the time of its end, and is written after its checkpoint, which may take long."""
    files = Files(tmp_path, healthy())
    watch = files.watch()
    for number in range(1, 11):
        files.add(number)
        watch.look()
    late = healthy()[10]["time"] + 2000
    files.now = late
    watch.look()
    files.add(11)
    for _ in range(2):
        files.now = late + 10
        watch.look()
    assert files.told() == [(10, "stall", "warn")]


def test_a_controller_pauses_resumably(tmp_path: Path) -> None:
    """Every group is flat; the controller stops dispatching, keeps what it has, and another one goes on."""
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    metrics = tmp_path / "metrics"
    settings = RLSettings(steps=3, groups_per_step=1, group_size=2, concurrency=2, max_staleness=0)

    def watch(**options: Any) -> HealthWatch:
        alarms = AlarmSettings(window=1, flat_share=0.4, **options)
        files = {"rollouts": metrics / "rollouts.jsonl", "trainer": metrics / "trainer.jsonl"}
        return HealthWatch(alarms, steps=3, log=metrics / "alarms.jsonl", **files)

    async def main() -> None:
        async with trained(tmp_path, 4, reward=by_number({0, 1, 2, 3})) as at:
            with pytest.raises(RunPaused, match=r"flat paused the run after step 1 of 3: 100% of the groups"):
                await at.run(settings, health=watch(flat="pause"))
            before = at.conserved(finished=False)
            assert before.dispatched < 6 and len(at.trained) < 3
            await at.run(settings, health=watch(flat="warn"))
            assert len(at.trained) == 3 and at.conserved().dropped["zero_advantage"] == 6

    asyncio.run(main())


def test_what_was_trained_while_the_run_paused_is_told_though_nothing_is_left_to_train(tmp_path: Path) -> None:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    metrics = tmp_path / "metrics"
    settings = RLSettings(steps=3, groups_per_step=1, group_size=2, concurrency=2, max_staleness=0)

    async def main() -> None:
        async with trained(tmp_path, 4, reward=by_number({0, 1, 2, 3})) as at:
            await at.run(settings)
            paused = {"step": 1, "time": 0, "alarm": "flat", "action": "pause", "message": "played"}
            (metrics / "alarms.jsonl").write_text(json.dumps(paused) + "\n")
            files = {"rollouts": metrics / "rollouts.jsonl", "trainer": metrics / "trainer.jsonl"}
            watch = HealthWatch(AlarmSettings(window=1, flat="pause"), steps=3, log=metrics / "alarms.jsonl", **files)
            await at.run(settings, health=watch)

    asyncio.run(main())
    told = [(row["step"], row["action"]) for row in read_alarms(metrics / "alarms.jsonl")]
    assert told == [(1, "pause"), (2, "warn")]


def test_names_that_a_policy_invents_are_counted_together() -> None:
    """They would hide a collapse to one tool, and fill the metrics."""
    real = [ToolEvent(1, "run_command", {}, "")] * 50
    invented = [ToolEvent(1, f"tool{number}", None, "", "unknown_tool") for number in range(50)]
    trajectory = Trajectory("t", "task", "g", "train", "", "p", "limit", events=[*real, *invented])
    assert measure([[trajectory]], 1)["tools"] == {"(unknown)": 0.5, "run_command": 0.5}
    many = [ToolEvent(1, f"tool{number:03d}", {}, "") for number in range(100)]
    shares = measure([[replace(trajectory, events=many)]], 1)["tools"]
    assert len(shares) == 13 and shares["(other)"] == pytest.approx(0.88) and sum(shares.values()) == pytest.approx(1)


def test_changed_code_of_an_agent_program_counts_as_an_edit() -> None:
    """Its edits are not counted, and the alarm ``edits`` was silent about it."""
    one = Trajectory("t", "task", "g", "train", "", "p", "submitted", changed={"a.py": "x = 1"})
    assert measure([[one, replace(one, changed={})]], 1)["edit_rate"] == 0.5


def test_any_name_that_an_agent_program_sends_can_be_plotted_and_mirrored() -> None:
    events = [ToolEvent(1, name, {}, "") for name in ("half \ud800", "\x1b[2J", "x" * 10_000)]
    tools = measure([[Trajectory("t", "task", "g", "train", "", "p", "limit", events=events)]], 1)["tools"]
    assert sorted(map(len, tools)) == [4, 6, 60]
    assert "<svg" in lines({name: ([1, 2], [share, share]) for name, share in tools.items()}, x="step", y="tools")
    assert len(event({"step": 1, "tools": tools}, 0.0).summary.value) == 3
