"""Running a policy on tasks: every (task, sample) once, stored by name, continued after a kill."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from ..record.store import TrajectoryStore
from ..record.task import Task
from ..rl.rollout import Arena, rollout

INFRA = "infra_error"
"""Status of a trajectory that something else than the policy ended."""


@dataclass(frozen=True)
class Sofar:
    """How far an evaluation is, in samples. ``rate`` is pass@1 over the ``complete`` ones of ``tasks`` tasks, whose
    samples are all in, and None before there is one. Over all samples that are in, it would begin too high: solved
    episodes end first."""

    done: int
    total: int
    complete: int
    tasks: int
    rate: float | None

    def __str__(self) -> str:
        if self.rate is None:
            return "no task has all its samples yet"
        return f"pass@1 {self.rate:.3f} over the {self.complete} of {self.tasks} tasks whose samples are all in"


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
    progress: Callable[[Sofar], None] | None = None,
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
            progress(_sofar(wanted, results))

    await asyncio.gather(*(one(task, id) for task, id in wanted if id not in stored))
    store.compact(1)
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, id in wanted:
        by_task[task.name].append(results[id])
    return dict(by_task)


def _sofar(wanted: Sequence[tuple[Task, str]], results: Mapping[str, bool]) -> Sofar:
    by_task: dict[str, list[bool | None]] = defaultdict(list)
    for task, id in wanted:
        by_task[task.name].append(results.get(id))
    rates = [sum(map(bool, samples)) / len(samples) for samples in by_task.values() if None not in samples]
    return Sofar(len(results), len(wanted), len(rates), len(by_task), sum(rates) / len(rates) if rates else None)


def _sample(id: str, lost: Collection[str]) -> str:
    """``id``, or the first of ``id.1``, ``id.2`` ... that is not ``lost``."""
    return id if id not in lost else next(again for n in count(1) if (again := f"{id}.{n}") not in lost)
