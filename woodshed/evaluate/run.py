"""Run a policy on tasks: every (task, sample) once, stored by name, so that a killed evaluation continues."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import INFRA, FailureWatch
from woodshed.rollout.rollout import Arena, rollout

_REPEATED = re.compile(r"(:\d+)\.\d+$")


@dataclass(frozen=True)
class Sofar:
    """Progress of an evaluation: ``done`` of ``total`` samples, ``complete`` of ``tasks`` tasks.

    ``rate``: pass@1 over the complete tasks, those whose samples are all finished; None before there is one. Over all
    finished samples it would be too high at first, because solved episodes end first.
    """

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
    """Return the name of the group of a task's samples in an evaluation."""
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
    seed: int | None = None,
    may_start: Callable[[], bool] = lambda: True,
) -> dict[str, list[bool]]:
    """Run the samples that are not stored yet; return for each task name whether its samples are resolved.

    Samples that infrastructure errors ended are left out. Raises RunFailing if more than ``arena.max_infra_rate`` of
    the last episodes end so. Trajectories are stored with ``source="eval"``, group ``NAME:TASK`` and label
    ``evaluation=NAME``. ``label`` returns the TASK of the group; samples stored under another label do not count.
    ``retried``: samples stored with an infrastructure error are run once more, under another id. ``seed``: base of a
    separate sampling seed for each sample, the same for every policy and after a kill; None leaves the choice to the
    server. ``may_start`` is called before each episode; once it returns False, running episodes are finished and no
    further ones start.
    """
    wanted, results = plan_samples(store, tasks, name=name, samples=samples, label=label, retried=retried)
    group_of = {task.name: group_name(name, label(task)) for task in tasks}
    slots, failures = asyncio.Semaphore(concurrency), FailureWatch(arena.max_infra_rate, arena.infra_window)

    async def one(task: Task, id: str) -> None:
        async with slots:
            if not may_start():
                return
            trajectory = await rollout(
                arena,
                task,
                id=id,
                group=group_of[task.name],
                source="eval",
                labels={"evaluation": name},
                seed=None if seed is None else sample_seed(seed, id.removeprefix(f"{name}:")),
            )
        store.add(trajectory)
        failed = trajectory.status == INFRA
        results[id] = None if failed else bool(trajectory.outcome and trajectory.outcome.resolved)
        failures.update(trajectory)
        if progress:
            progress(_sofar(wanted, results))

    episodes = [asyncio.create_task(one(task, id)) for task, id in wanted if id not in results]
    try:
        await asyncio.gather(*episodes)
    finally:
        for episode in episodes:
            episode.cancel()
        await asyncio.gather(*episodes, return_exceptions=True)
    store.compact(1)
    by_task: dict[str, list[bool]] = defaultdict(list)
    for task, id in wanted:
        resolved = results.get(id)
        if resolved is not None:
            by_task[task.name].append(resolved)
    return dict(by_task)


def plan_samples(
    store: TrajectoryStore,
    tasks: Sequence[Task],
    *,
    name: str,
    samples: int,
    label: Callable[[Task], str] = lambda task: task.name,
    retried: bool = False,
) -> tuple[list[tuple[Task, str]], dict[str, bool | None]]:
    """Return (task and id of every sample of the evaluation ``name``; result by id of samples stored already).

    A result is None if an infrastructure error ended the sample. ``retried``: such a sample gets another id, so that it
    is run again.
    """
    rows = {row["id"]: row for row in store.rows(f"source = 'eval' AND group_id LIKE '{name}:%'")}
    lost = {id for id, row in rows.items() if retried and row["status"] == INFRA}
    groups = [(task, group_name(name, label(task))) for task in tasks]
    wanted = [(task, _sample(f"{group}:{k:02d}", lost)) for task, group in groups for k in range(samples)]
    stored = {id: rows[id] for _, id in wanted if id in rows}
    return wanted, {id: None if row["status"] == INFRA else bool(row["resolved"]) for id, row in stored.items()}


def sample_seed(seed: int, sample: str) -> int:
    """Return the sampling seed of one sample of a task, in [0, 2^31). A repeated sample (``.1``) has the seed of the
    first try."""
    first_try = _REPEATED.sub(r"\1", sample)
    digest = hashlib.sha256(f"{seed}:{first_try}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def _sofar(wanted: Sequence[tuple[Task, str]], results: Mapping[str, bool | None]) -> Sofar:
    """Return the progress. ``results``: by sample id; None if an infrastructure error ended the sample, which then does
    not count in the rate."""
    by_task: dict[str, list[str]] = defaultdict(list)
    for task, id in wanted:
        by_task[task.name].append(id)
    complete = [ids for ids in by_task.values() if all(id in results for id in ids)]
    known = [[resolved for id in ids if (resolved := results[id]) is not None] for ids in complete]
    rates = [sum(each) / len(each) for each in known if each]
    return Sofar(len(results), len(wanted), len(complete), len(by_task), sum(rates) / len(rates) if rates else None)


def _sample(id: str, lost: Collection[str]) -> str:
    """Return ``id`` or, if it is in ``lost``, the first of ``id.1``, ``id.2`` ... that is not."""
    return id if id not in lost else next(again for n in count(1) if (again := f"{id}.{n}") not in lost)
