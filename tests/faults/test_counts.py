"""What infrastructure errors leave of groups, evaluations and builds: nothing that tells of a policy or a task."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.evaluate.run import evaluate
from woodshed.gateway.segments_wire import Finished
from woodshed.grading.heldout import EndlessError
from woodshed.harness.settings import LimitSettings
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.failures import FAULT, INFRA, FailureWatch, RunFailing
from woodshed.rollout.observed import observe
from woodshed.rollout.program import ProgramExit
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend, probe_namespace
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxGone, SandboxError
from woodshed.stages.evaluate import _ungraded
from woodshed.stages.rl import describe
from woodshed.tasks.generators.packages.report import Ledger
from woodshed.tasks.generators.packages.stream import Attempt, Stream, Verdict
from woodshed.view.summary import evaluation

from .ground import MEND, ground, run
from .hosts import Short


@pytest.fixture
def layers(tmp_path: Path) -> LayerStore:
    if not (probe := probe_namespace(None)).ok:
        pytest.skip("; ".join(probe.reasons))
    return LayerStore(tmp_path / "layers")


def episode(number: int, status: Any, **labels: str) -> Trajectory:
    outcome = None if status == INFRA else Outcome(True, {})
    return Trajectory(
        str(number), f"t/{number}", "g", "train", "h", "p", status, outcome=outcome, labels=labels, error="why"
    )


def test_an_evaluation_leaves_out_what_no_policy_ended(layers: LayerStore, tmp_path: Path) -> None:
    async def main() -> None:
        async with ground(tmp_path / "at", layers, NamespaceBackend) as at:
            done = await at.trajectory(run(MEND))  # sets what the policy says
            assert done.outcome is not None and done.outcome.resolved
            tasks = [replace(at.task, name=f"t/{n}") for n in range(2)]
            store = TrajectoryStore(tmp_path / "store")
            short = Short(at.backend, 1, 1)  # the first episode gets no box, and is not tried again
            asked: dict[str, Any] = {"name": "before", "samples": 2, "concurrency": 1}
            found = await evaluate(at.arena(backend=short, attempts=1), tasks, store, **asked)
            assert found == {"t/0": [True], "t/1": [True, True]}
            seen = evaluation(store, "before")
            assert seen is not None and seen.pass1_by_task == [1.0, 1.0] and seen.statuses == {INFRA: 1, "submitted": 3}
            again = await evaluate(at.arena(attempts=1), tasks, store, retried=True, **asked)
            assert again == {"t/0": [True, True], "t/1": [True, True]} and len(store) == 5
            with pytest.raises(RunFailing, match=r"3 of the last 3 episodes failed, more than 0\.5 of 4.*no box"):
                failing = at.arena(backend=Short(at.backend, 1, 99), attempts=1, infra_window=4)
                await evaluate(failing, tasks, store, name="after", samples=2, concurrency=1)
            store.close()

    asyncio.run(main())


def test_rates_of_a_batch_leave_them_out() -> None:
    groups = [[episode(0, "submitted"), episode(1, INFRA)], [episode(2, INFRA), episode(3, INFRA)]]
    told = describe(groups)
    assert told["pass_rate"] == told["best_of_group"] == 1.0 and told["statuses"] == {"submitted": 1, INFRA: 3}


def test_a_run_ends_above_a_rate_of_failures() -> None:
    watch = FailureWatch(0.5, 8)
    for number, status in enumerate([INFRA, "limit", INFRA, INFRA, "limit", INFRA, "submitted", "limit", INFRA]):
        watch.update(episode(number, status, **({FAULT: "host"} if status == INFRA else {})))
    with pytest.raises(RunFailing, match=r"5 of the last 8 .* the policy server does not work\. .* 1 tries: why"):
        watch.update(episode(9, INFRA, **{FAULT: "endpoint"}))
    assert watch.counts == {"host": 5, "endpoint": 1}
    one_task = FailureWatch(0.5, 4)
    for _ in range(9):
        one_task.update(episode(0, INFRA))
    off = FailureWatch(1.0, 4)
    for number in range(9):
        off.update(episode(number, INFRA))


def test_tasks_that_cannot_be_graded_end_no_run(
    layers: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def grade(*_: Any, **__: Any) -> Outcome:
        raise EndlessError("the solution's tests do not end on other inputs")

    monkeypatch.setattr("woodshed.rollout.rollout.grade", grade)

    async def main() -> None:
        async with ground(tmp_path / "at", layers, NamespaceBackend) as at:
            done = await at.trajectory(run(MEND), attempts=3)
            assert (done.status, done.outcome, done.attempts) == (INFRA, None, 1) and done.labels == {FAULT: "task"}
            tasks = [replace(at.task, name=f"t/{n}") for n in range(3)]
            store = TrajectoryStore(tmp_path / "store")
            arena = at.arena(attempts=3, infra_window=2)
            assert await evaluate(arena, tasks, store, name="before", samples=2, concurrency=1) == {}
            assert _ungraded(store, "before") == {"t/0", "t/1", "t/2"} and _ungraded(store, "after") == set()
            store.close()

    asyncio.run(main())
    watch = FailureWatch(0.0, 1)
    for number in range(3):
        watch.update(episode(number, INFRA, **{FAULT: "task"}))
    assert watch.counts == {"task": 3}


def test_a_candidate_that_ends_its_box_is_rejected_and_a_silent_box_is_no_verdict(tmp_path: Path) -> None:
    def work(error: Exception) -> Any:
        async def fail(_: Path) -> Task:
            raise error

        return fail

    async def judged(error: Exception) -> list[Verdict]:
        stream = Stream(ledger, tmp_path, asyncio.Semaphore(1), 1)
        return [v async for v in stream.judged(iter([Attempt("slug", "kind", work(error))]))]

    ledger = Ledger(tmp_path / "ledger.jsonl", "settings")
    for error in (BoxGone(errno.ETIMEDOUT, "no answer"), SandboxError("no box")):
        with pytest.raises(SandboxError):
            asyncio.run(judged(error))
        assert not ledger.verdicts
    (verdict,) = asyncio.run(judged(BoxGone(errno.ENOMEM, "more memory than it may")))
    assert verdict.why == "its box is gone: more memory than it may" and set(ledger.verdicts) == {"slug"}


def test_what_a_program_says_is_read_however_deep_it_is() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "x", "arguments": "[" * 100_000}}
    finished = Finished("i", [], usage=[], messages=[[{"role": "assistant", "content": None, "tool_calls": [call]}]])
    (event,) = observe(finished, ProgramExit(0, False, False, 1.0, ""), LimitSettings()).events
    assert (event.name, event.arguments) == ("x", None)
