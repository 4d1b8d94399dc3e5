"""Running a policy on tasks: every (task, sample) once, stored by name, continued after a kill."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import count

from ..record.store import TrajectoryStore
from ..record.task import Task
from ..rl.rollout import Arena, rollout

INFRA = "infra_error"
"""Status of a trajectory that something else than the policy ended."""


def group_name(evaluation: str, task: str) -> str:
    """Group of a task's samples in an evaluation."""
    return f"{evaluation}:{task.replace('/', '.')}"


async def evaluate(
    arena: Arena,
    tasks: Sequence[Task],
    store: TrajectoryStore,
    *,
    name: str,
    samples: int,
    concurrency: int,
    progress: Callable[[int, int, float], None] | None = None,
    label: Callable[[Task], str] = lambda task: task.name,
    retried: bool = False,
) -> dict[str, list[bool]]:
    """Resolved or not, per task name and sample. Infrastructure errors count as not resolved and keep their status.

    Trajectories are stored with ``source="eval"``, group ``NAME:TASK`` and label ``evaluation=NAME``. ``label`` stands
    for the task in the group: what is stored under another one is not taken for its samples. ``retried``: samples that
    are stored with an infrastructure error are run once more, under another id.
    """
    group_of = {task.name: group_name(name, label(task)) for task in tasks}
    rows = {row["id"]: row for row in store.rows(f"source = 'eval' AND group_id LIKE '{name}:%'")}
    stored = {id: bool(row["resolved"]) for id, row in rows.items()}
    lost = {id for id, row in rows.items() if retried and row["status"] == INFRA}
    wanted = [(task, _sample(f"{group_of[task.name]}:{k:02d}", lost)) for task in tasks for k in range(samples)]
    results = {id: stored[id] for _, id in wanted if id in stored}
    slots = asyncio.Semaphore(concurrency)

    async def one(task: Task, id: str) -> None:
        async with slots:
            trajectory = await rollout(
                arena, task, id=id, group=group_of[task.name], source="eval", labels={"evaluation": name}
            )
        store.add(trajectory)
        results[id] = bool(trajectory.outcome and trajectory.outcome.resolved)
        if progress:
            progress(len(results), len(wanted), sum(results.values()) / len(results))

    await asyncio.gather(*(one(task, id) for task, id in wanted if id not in stored))
    store.compact(1)
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, id in wanted:
        by_task[task.name].append(results[id])
    return dict(by_task)


def _sample(id: str, lost: Collection[str]) -> str:
    """``id``, or the first of ``id.1``, ``id.2`` ... that is not ``lost``."""
    return id if id not in lost else next(again for n in count(1) if (again := f"{id}.{n}") not in lost)
