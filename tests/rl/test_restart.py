"""A controller without boxes: the rollouts that it takes over from the gateway after a restart, its share of the run,
and what it makes of finished groups and writes down of each batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from woodshed.record.history import Rating, note_rating
from woodshed.record.jsonl import read_jsonl
from woodshed.record.segment import Segment
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskInfo, save_task
from woodshed.record.trajectory import Fork, Outcome, Trajectory
from woodshed.rl.controller import Controller
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import CurriculumSettings, RLSettings
from woodshed.rollout.failures import INFRA, RunFailing

SETTINGS = RLSettings(
    steps=3, groups_per_step=2, group_size=2, concurrency=2, curriculum=CurriculumSettings(order="variance")
)
TASKS = [Task(Path("nowhere"), f"t/{n}", "", TaskInfo(), {}) for n in range(8)]


class Admin:
    """A gateway at which these rollouts are open."""

    def __init__(self, *ids: str) -> None:
        self.open = set(ids)

    async def wait_until_up(self, patience: float) -> None:
        pass

    async def list(self) -> list[dict[str, str]]:
        return [{"id": id, "source": "live" if id.startswith("live") else "train"} for id in self.open]

    async def delete(self, id: str) -> None:
        self.open.remove(id)


def controller(folder: Path, admin: Admin, *, tasks: Sequence[Task] = TASKS, **options: Any) -> Controller:
    arena: Any = SimpleNamespace(admin=admin, patience=1.0)
    return Controller(
        arena,
        tasks,
        Ledger(folder / "state.sqlite"),
        TrajectoryStore(folder / "store"),
        SETTINGS,
        batches=folder / "batches",
        metrics=folder / "rollouts.jsonl",
        head=lambda: 0,
        build=lambda groups, step: pytest.fail("nothing is built"),
        seed=0,
        **options,
    )


def episode(id: str, *, solved: bool | None = False, version: int = 0) -> Trajectory:
    """A stored rollout or fork of group n on task n; ``solved`` None: an infrastructure error ended it."""
    group = id.partition("-")[0]
    sampled = np.array([False, True])
    logprobs, versions = np.where(sampled, -1, 0).astype(np.float32), np.where(sampled, version, -1).astype(np.int32)
    segment = Segment(np.arange(2, dtype=np.int32), sampled, logprobs, versions)
    made = Trajectory(id, f"t/{int(group[1:])}", group, "train", "", "", "submitted", segments=[segment])
    if ".f" in id:
        made = replace(made, fork=Fork(id.partition(".")[0], 1, 0, 1))
    return replace(made, status=INFRA) if solved is None else replace(made, outcome=Outcome(solved))


class Told:
    """A curriculum that keeps what it is told."""

    def __init__(self) -> None:
        self.groups: list[tuple[str, list[str], int]] = []

    def update(self, task: Task, group: Sequence[Trajectory], version: int) -> None:
        self.groups.append((task.name, [t.id for t in group], version))


class Growing:
    """Growth that makes nothing; ``broken`` tasks are taken out."""

    def __init__(self, *broken: str) -> None:
        self.broken, self.tasks = set(broken), {task.name: task for task in TASKS}
        self.planned: list[int] = []
        self.checked: list[str] = []
        self.record = SimpleNamespace(counts=lambda: {})

    def plan(self, step: int) -> None:
        self.planned.append(step)

    def taken_out(self) -> set[str]:
        return self.broken

    async def sound(self, task: Task, step: int) -> bool:
        self.checked.append(task.name)
        return task.name not in self.broken


def test_open_replacements_are_continued_like_the_members_that_they_replace(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    done, row = (ledger.dispatch(f"t/{n}", n, 0, 2) for n in range(2))
    ledger.finish(done.id, "ready")
    again = ledger.replace(row.id, "g000001-01", 1)
    ledger.fork(row.id, ["g000001-00.f0"])
    ledger.close()
    admin = Admin("g000000-00", "g000001-00", again, "g000001-00.f0", "unknown", "live-1")
    assert asyncio.run(controller(tmp_path, admin)._left_open()) == {"g000001-00", again}
    assert admin.open == {"g000001-00", again, "live-1"}, "conversations of others stay open"


def test_ready_groups_that_became_too_old_meanwhile_are_replaced(tmp_path: Path) -> None:
    """The trainer went on while there was no controller, and no rollout is in flight that would wake this one."""
    ledger = Ledger(tmp_path / "state.sqlite")
    groups = [ledger.dispatch(f"t/{n}", n, 0, 2).id for n in range(6)]
    for group in groups:
        ledger.finish(group, "ready")
    ledger.batch(1, groups[:2])
    ledger.batch(2, groups[2:4])
    ledger.close()
    made = controller(tmp_path, Admin())
    made.settings, made.version = SETTINGS.model_copy(update={"max_token_age": 1}), 2
    for group in groups[4:]:
        made.store.add(episode(f"{group}-00"))
    made._dispatch()
    assert not made.ledger.open_groups(), "all six groups of the run are there"
    made._form_batches()
    assert made.ledger.counts() == {"batched": 4, "stale": 2} and made._changed.is_set()


@pytest.mark.parametrize(("all_steps", "expected"), [(None, 2 / 3), (6, 1 / 3)])
def test_the_progress_of_the_curriculum_is_that_of_the_whole_run(
    tmp_path: Path, all_steps: int | None, expected: float
) -> None:
    """A round ends after the third step; the run has six."""
    seen: list[float] = []

    class Curriculum:
        def choose(self, unused: Sequence[Task], position: int, progress: float) -> Task:
            seen.append(progress)
            return unused[0]

    made = controller(tmp_path, Admin(), all_steps=all_steps)
    made.curriculum, made.version = Curriculum(), 2  # type: ignore[assignment]
    made._next_task(0)
    assert seen == [pytest.approx(expected)]


def test_a_restarted_controller_has_learned_the_same_and_plans_again(tmp_path: Path) -> None:
    """The curriculum is told the roots of each group at the version of its dispatch, but no task that was taken out. A
    group that was ready when a round ended was learned from, one that was open was not. The plan after the newest batch
    may have been lost, so it is made again."""
    ledger = Ledger(tmp_path / "state.sqlite")
    rows = [ledger.dispatch(f"t/{n}", n, n, 2) for n in range(5)]
    ledger.fork(rows[2].id, ["g000002-00.f0"])
    ledger.finish(rows[2].id, "ready")
    ledger.finish(rows[1].id, "failed", step=1)
    ledger.finish(rows[0].id, "ready")
    ledger.batch(1, [rows[2].id, rows[0].id])
    ledger.finish(rows[4].id, "ready")
    for number in (3, 4):
        ledger.finish(rows[number].id, "unused")
    ledger.close()
    growth, told = Growing("t/1"), Told()
    made = controller(tmp_path, Admin(), growth=growth)
    for id in (
        *(f"g00000{n}-0{m}" for n, m in ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (4, 0), (4, 1))),
        "g000002-00.f0",
    ):
        made.store.add(episode(id))
    made.curriculum, made.version = told, 1  # type: ignore[assignment]
    made._recover()
    of = {n: (f"t/{n}", [f"g{n:06d}-00", f"g{n:06d}-01"], n) for n in range(5)}
    assert told.groups == [of[2], of[0], of[4]] and growth.planned == [1]


def test_finished_groups_are_learned_from_and_only_unsolved_ones_checked(tmp_path: Path) -> None:
    results = {0: (True, False), 1: (False, False), 2: (None, None), 3: (False, False), 4: (True, None)}
    growth, told = Growing("t/3"), Told()
    made = controller(tmp_path, Admin(), growth=growth)
    made.settings = SETTINGS.model_copy(update={"replacements": 0})
    made.curriculum, made.version = told, 9  # type: ignore[assignment]

    async def main() -> None:
        for n, solved in results.items():
            row = made.ledger.dispatch(f"t/{n}", n, n, 2)
            known = {id: episode(id, solved=s) for id, s in zip(made.ledger.members(row.id), solved)}
            for trajectory in known.values():
                made.store.add(trajectory)
            await made._run_group(row, list(known), known)

    asyncio.run(main())
    assert growth.checked == ["t/1", "t/3"], "nothing is known of a task whose rollouts were all lost"
    assert [(name, len(ids), version) for name, ids, version in told.groups if ids] == [
        ("t/0", 2, 0),
        ("t/1", 2, 1),
        ("t/4", 1, 4),
    ], "with the version at dispatch, as after a restart"
    assert {row.id for row in made.ledger.ready_groups()} == {"g000000", "g000001"}
    assert made.ledger.dropped_groups(1) == ["g000002", "g000003", "g000004"]


def test_the_line_of_a_batch(tmp_path: Path) -> None:
    """The second batch takes a group of version 0, which solved one of two, after a flat one and a lost one."""
    made = controller(tmp_path, Admin())
    made.settings = SETTINGS.model_copy(update={"groups_per_step": 1})
    rows = [made.ledger.dispatch(f"t/{n}", n, 0, 2) for n in range(4)]
    made.ledger.finish(rows[0].id, "ready")
    made.ledger.batch(1, [rows[0].id])
    made.ledger.fork(rows[2].id, ["g000002-00.f0"])
    for n, results in ((1, (False, False)), (2, (True, False)), (3, (None, None))):
        for member, solved in enumerate(results):
            made.store.add(episode(f"g{n:06d}-{member:02d}", solved=solved))
    made.store.add(episode("g000002-00.f0", solved=True))
    made.ledger.finish(rows[1].id, "flat", step=2)
    made.ledger.finish(rows[3].id, "failed", step=2)
    made.ledger.finish(rows[2].id, "ready")
    saved: list[Path] = []
    made.build = lambda groups, step: (
        SimpleNamespace(save=saved.append),  # type: ignore[return-value]
        {"fates": {t.id: "trained" for group in groups for t in group}},
    )
    made._form_batches()
    (line,) = read_jsonl(tmp_path / "rollouts.jsonl")
    assert (line["step"], line["staleness"], line["flat_groups"]) == (2, 1, 1) and saved == [made._batch_path(2)]
    assert line["infra_share"] == 2 / 7, "of all rollouts since the last batch"
    assert line["sampled_pass_rate"] == 1 / 4, "flat groups count, and forks do not"
    assert line["forks_dispatched"] == 1 and line["replacements"] == 0


def test_the_newest_rating_of_a_task_counts(tmp_path: Path) -> None:
    files = {"a.py": b"", "test.sh": b""}
    task = save_task(
        tmp_path / "task", name="t/0", instruction="", info=TaskInfo(), workspace=files, tests=files, solution=files
    )
    for day, solved in ((2, 8), (1, 0)):
        note_rating(task, Rating(f"g{day}", "p", 0, 8, solved, "rate", f"2026-01-0{day}T00:00:00Z"))
    made = controller(tmp_path, Admin(), tasks=[task, *TASKS[1:]])
    assert made.curriculum is not None
    assert (made.curriculum._rated["t/0"].solved, made.curriculum._rated["t/0"].failed) == (8, 0)


def test_a_server_that_does_not_follow_ends_the_run_after_twice_the_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted anew after every version that it has taken."""
    moments = iter([0.0, 15.0, 30.0, 45.0, 51.0])
    answers = iter([False, False, True, False, False, False])

    class Server(Admin):
        async def follow(self, version: int) -> int:
            if not next(answers):
                raise httpx.ConnectError("nothing there")
            return version

        async def engine(self) -> dict[str, Any]:
            return {}

    async def at_once(_: float) -> None:
        pass

    made = controller(tmp_path, Server())
    made.arena.patience = 10.0  # type: ignore[misc]
    made.head = lambda: made.version + 1
    monkeypatch.setattr("woodshed.rl.controller.time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr("woodshed.rl.controller.asyncio.sleep", at_once)
    with pytest.raises(RunFailing, match="has not taken version 2 for 21 s: ConnectError"):
        asyncio.run(made._watch_versions())
    assert made.version == 1 and not list(moments) and not list(answers)
