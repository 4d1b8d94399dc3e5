"""Run a policy on tasks: every (task, sample) once, stored by name, so that a killed evaluation continues."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count

from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import INFRA, FailureWatch
from woodshed.rollout.rollout import Arena, rollout

_PROGRESS_EVERY = 0.2
"""Seconds between two reports of progress."""
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
    tally, told = _Tally(wanted, results), -math.inf

    async def one(task: Task, id: str) -> None:
        nonlocal told
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
        tally.add(task.name, results[id])
        if progress and ((now := time.monotonic()) >= told + _PROGRESS_EVERY or tally.finished):
            told = now
            progress(tally.sofar())

    if progress and wanted:
        progress(tally.sofar())  # where it begins, so that a rate counts from here
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


class _Tally:
    """Counts of an evaluation that each finished sample updates in constant time.

    ``results``: by sample id, for the samples stored before; None if an infrastructure error ended the sample, which
    then does not count in the rate.
    """

    def __init__(self, wanted: Sequence[tuple[Task, str]], results: Mapping[str, bool | None]) -> None:
        self._missing = Counter(task.name for task, _ in wanted)
        self._known: Counter[str] = Counter()
        self._resolved: Counter[str] = Counter()
        self._done, self._complete, self._total, self._tasks = 0, 0, len(wanted), len(self._missing)
        self._rates, self._rated = Fraction(0), 0
        for task, id in wanted:
            if id in results:
                self.add(task.name, results[id])

    def add(self, task: str, resolved: bool | None) -> None:
        self._done += 1
        self._missing[task] -= 1
        if resolved is not None:
            self._known[task] += 1
            self._resolved[task] += resolved
        if self._missing[task] == 0:
            self._complete += 1
            if self._known[task]:
                self._rates += Fraction(self._resolved[task], self._known[task])
                self._rated += 1

    @property
    def finished(self) -> bool:
        return self._done == self._total

    def sofar(self) -> Sofar:
        rate = float(self._rates / self._rated) if self._rated else None
        return Sofar(self._done, self._total, self._complete, self._tasks, rate)


def _sample(id: str, lost: Collection[str]) -> str:
    """Return ``id`` or, if it is in ``lost``, the first of ``id.1``, ``id.2`` ... that is not."""
    return id if id not in lost else next(again for n in count(1) if (again := f"{id}.{n}") not in lost)
