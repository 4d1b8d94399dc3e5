"""A restarted controller: the rollouts that it takes over from the gateway, and its share of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from woodshed.record.segment import Segment
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskInfo
from woodshed.record.trajectory import Trajectory
from woodshed.rl.controller import Controller
from woodshed.rl.ledger import Ledger
from woodshed.rl.settings import CurriculumSettings, RLSettings

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
        return [{"id": id, "source": "train"} for id in self.open]

    async def delete(self, id: str) -> None:
        self.open.remove(id)


def controller(folder: Path, admin: Admin, **options: Any) -> Controller:
    arena: Any = SimpleNamespace(admin=admin, patience=1.0)
    return Controller(
        arena,
        TASKS,
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


def test_open_replacements_are_continued_like_the_members_that_they_replace(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "state.sqlite")
    done, row = (ledger.dispatch(f"t/{n}", n, 0, 2) for n in range(2))
    ledger.finish(done.id, "ready")
    again = ledger.replace(row.id, "g000001-01", 1)
    ledger.fork(row.id, ["g000001-00.f0"])
    ledger.close()
    admin = Admin("g000000-00", "g000001-00", again, "g000001-00.f0", "unknown")
    assert asyncio.run(controller(tmp_path, admin)._left_open()) == admin.open == {"g000001-00", again}


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
    sampled = np.array([False, True])
    logprobs, versions = np.where(sampled, -1, 0).astype(np.float32), np.where(sampled, 0, -1).astype(np.int32)
    for n, group in enumerate(groups[4:], 4):
        segment = Segment(np.arange(2, dtype=np.int32), sampled, logprobs, versions)
        made.store.add(Trajectory(f"{group}-00", f"t/{n}", group, "train", "", "", "submitted", segments=[segment]))
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
