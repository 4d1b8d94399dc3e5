"""The controller: keeps rollouts in flight, groups them, hands batches to the trainer, never waits for a whole step.

Invariants: a prompt is dispatched once, ever (ledger). Every dispatched rollout is stored exactly once (its id is
decided at dispatch). A batch is decided in the ledger before its file appears, and its file can be made again.
Staleness is bounded at dispatch (AReaL, arXiv:2505.24298, section 5.1) and by a sweep of old tokens in the queue.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx

from woodshed.gateway.client import GatewayError
from woodshed.record.history import read_history
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.failures import INFRA, FailureWatch, RunFailing
from woodshed.rollout.forking import ForkPoint
from woodshed.rollout.rollout import Arena, rollout
from woodshed.train.batch import TrainBatch
from woodshed.train.metrics_log import MetricsLog

from .curriculum import Curriculum, replay
from .forks import planned, roots
from .ledger import GroupRow, Ledger, OutOfTasks
from .settings import RLSettings


def may_dispatch(used: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Whether one more group keeps every group within ``max_staleness`` versions of the step that trains it.

    ``used`` groups were dispatched for training so far and ``version`` steps were published: the next group is trained
    at version ``used // groups_per_step``, which may exceed ``version`` by at most ``max_staleness``.
    """
    return used // groups_per_step - version <= max_staleness


def token_age(trajectories: Iterable[Trajectory], version: int) -> int:
    """Versions between the oldest sampled token of a group and ``version``; 0 where nothing was sampled."""
    oldest = [low for low, _ in (t.version_range() for t in trajectories) if low >= 0]
    return max(0, version - min(oldest)) if oldest else 0


BuildBatch = Callable[[list[list[Trajectory]], int], tuple[TrainBatch, dict[str, Any]]]

log = logging.getLogger(__name__)


class Controller:
    """Runs until the trainer has published ``settings.steps`` versions.

    ``head()`` gives the newest published version; ``build`` turns groups into a batch and its statistics, in the order
    of steps; ``least``: graded rollouts that a group needs to be worth training on; ``notice`` is told what keeps the
    server from following.
    """

    def __init__(
        self,
        arena: Arena,
        tasks: Sequence[Task],
        ledger: Ledger,
        store: TrajectoryStore,
        settings: RLSettings,
        *,
        batches: Path,
        metrics: Path,
        head: Callable[[], int],
        build: BuildBatch,
        seed: int,
        least: int = 2,
        notice: Callable[[str], None] = lambda _: None,
    ):
        needed = settings.steps * settings.groups_per_step
        if len(tasks) < needed:
            raise OutOfTasks(
                f"rl.steps x rl.groups_per_step needs {needed} tasks and there are {len(tasks)}: a prompt is never "
                "trained twice; lower rl.steps or make more training tasks"
            )
        self.arena, self.ledger, self.store, self.settings = arena, ledger, store, settings
        self.batches, self.head, self.build = batches, head, build
        self.notice, self.least = notice, least
        self.metrics = MetricsLog(metrics)
        self.tasks = {t.name: t for t in tasks}
        self.order = sorted(self.tasks)
        random.Random(f"order-{seed}").shuffle(self.order)
        self.curriculum = Curriculum(settings.curriculum, seed) if settings.curriculum.order == "variance" else None
        for task in tasks if self.curriculum is not None else ():
            ratings = read_history(task).ratings
            if self.curriculum is not None and ratings:
                self.curriculum.set_prior(task, max(ratings, key=lambda rating: rating.date))
        self.version = 0
        self.engine: dict[str, Any] = {}
        self.failures = FailureWatch(settings.max_failures)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._open_members = 0
        self._ready: dict[str, list[Trajectory]] = {}

    async def run(self) -> None:
        self.batches.mkdir(parents=True, exist_ok=True)
        self.version = self.head()
        self._recover()
        watcher = asyncio.create_task(self._watch_versions())
        try:
            while self.version < self.settings.steps:
                self._dispatch()
                self._form_batches()
                await self._changed.wait()
                self._changed.clear()
                for done in [t for t in (*self._running, watcher) if t.done()]:
                    done.result()
                    self._running.discard(done)
        finally:
            for task in (*self._running, watcher):
                task.cancel()
            await asyncio.gather(*self._running, watcher, return_exceptions=True)
        for row in (*self.ledger.open_groups(), *self.ledger.ready_groups()):
            self.ledger.finish(row.id, "unused")
        self.store.compact(1)

    def _recover(self) -> None:
        """After a restart: batches the trainer still needs are written again, open groups are completed."""
        for step, groups in self.ledger.batches().items():
            if step > self.version and not self._batch_path(step).exists():
                self._write_batch(step, [self.store.group(g) for g in groups])
        if self.curriculum is not None:
            finished = self.ledger.finished_groups()
            groups = ((self.tasks[r.task], roots(self.store.group(r.id)), r.version) for r in finished)
            replay(self.curriculum, groups)
        for row in self.ledger.open_groups():
            self._launch(row)

    def _dispatch(self) -> None:
        settings = self.settings
        wanted = settings.steps * settings.groups_per_step
        while self._open_members < settings.concurrency:
            used = self.ledger.capacity_used()
            if used >= wanted or not may_dispatch(used, self.version, settings.groups_per_step, settings.max_staleness):
                return
            position = self.ledger.next_position()
            if position >= len(self.order):
                raise OutOfTasks(
                    f"all {len(self.order)} training tasks were used, {self.ledger.counts()}; make more of them: "
                    "what was swept as stale or failed is not used again"
                )
            self._launch(self.ledger.dispatch(self._next_task(position), position, self.version))

    def _next_task(self, position: int) -> str:
        if self.curriculum is None:
            return self.order[position]
        used = self.ledger.dispatched()
        unused = [self.tasks[name] for name in self.order if name not in used]
        return self.curriculum.choose(unused, position, self.version / self.settings.steps).name

    def _launch(self, row: GroupRow) -> None:
        stored = self.store.ids(row.id)
        members = [f"{row.id}-{i:02d}" for i in range(self.settings.group_size)]
        missing = [m for m in members if m not in stored]
        self._open_members += len(missing)
        self._running.add(asyncio.create_task(self._run_group(row, missing)))

    async def _run_group(self, row: GroupRow, missing: list[str]) -> None:
        stored = self.store.group(row.id) if self.settings.forks.count else []
        members = [self._run_member(row, member) for member in missing]
        await asyncio.gather(*members, *(self._run_forks(row, root) for root in stored))
        group = self.store.group(row.id)
        graded = [t for t in roots(group) if t.status != INFRA]
        self.ledger.finish(row.id, "ready" if len(graded) >= self.least else "failed")
        if self.curriculum is not None:
            self.curriculum.update(self.tasks[row.task], graded, row.version)
        if len(graded) >= self.least:
            self._ready[row.id] = group
        self._changed.set()

    async def _run_forks(self, row: GroupRow, root: Trajectory) -> None:
        """Run the forks of a finished rollout that are not stored yet."""
        forks = planned(root, self.settings.forks, self.store.ids(row.id))
        self._open_members += len(forks)
        await asyncio.gather(*(self._run_member(row, id, fork) for id, fork in forks.items()))

    async def _run_member(self, row: GroupRow, member: str, fork: ForkPoint | None = None) -> None:
        try:
            async with self._slots:
                task = self.tasks[row.task]
                trajectory = await rollout(self.arena, task, id=member, group=row.id, source="train", fork=fork)
            self.store.add(trajectory)
            self.failures.update(trajectory)
        finally:
            self._open_members -= 1
            self._changed.set()
        await self._run_forks(row, trajectory)

    def _form_batches(self) -> None:
        while True:
            fresh = []
            for row in self.ledger.ready_groups():
                group = self._ready.setdefault(row.id, []) or self.store.group(row.id)
                self._ready[row.id] = group
                if token_age(group, self.version) > self.settings.max_token_age:
                    self.ledger.finish(row.id, "stale")
                    del self._ready[row.id]
                else:
                    fresh.append(row.id)
            if len(fresh) < self.settings.groups_per_step:
                return
            chosen = fresh[: self.settings.groups_per_step]
            step = max(self.ledger.batches(), default=0) + 1
            if step > self.settings.steps:
                return
            self.ledger.batch(step, chosen)
            self._write_batch(step, [self._ready.pop(g) for g in chosen])
            self.store.compact()

    def _write_batch(self, step: int, groups: list[list[Trajectory]]) -> None:
        batch, statistics = self.build(groups, step)
        line = {
            "step": step,
            "time": time.time(),
            "version": self.version,
            "staleness": max(token_age(g, step - 1) for g in groups),
            "groups": self.ledger.counts(),
            "engine": self.engine,
            "failures": dict(self.failures.counts),
            **statistics,
        }
        self.metrics.append(line)  # before the file: a batch whose file is there is not written again
        batch.save(self._batch_path(step))

    async def _watch_versions(self) -> None:
        """Raises RunFailing where the server cannot be brought to a version for too long."""
        failing: float | None = None  # since when
        while True:
            head = await asyncio.to_thread(self._look)
            if head > self.version:
                try:
                    version = await self.arena.admin.follow(head)
                    self.engine = await self.arena.admin.engine()
                except (httpx.HTTPError, GatewayError) as error:  # asked again, and rollouts wait for it meanwhile
                    now = time.monotonic()
                    failing = now if failing is None else failing
                    if now - failing > 2 * self.arena.patience:
                        raise RunFailing(
                            f"the policy server has not taken version {head} for {now - failing:.0f} s: "
                            f"{type(error).__name__}: {error}"
                        ) from error
                    log.warning("version %d: %s", head, error)
                    if isinstance(error, GatewayError):  # damaged weights, say: the server goes on with those it has
                        self.notice(
                            f"the server stays at version {self.version} of the weights, {head} is there: {error}"
                        )
                    await asyncio.sleep(0.5)
                    await self.arena.admin.wait_until_up(self.arena.patience)
                    continue
                self.version, failing = version, None
                self._changed.set()
            await asyncio.sleep(0.05)

    def _look(self) -> int:
        """The head of the chain; what was seen last where its store does not answer."""
        try:
            return self.head()
        except OSError as error:
            log.warning("weights: %s", error)
            return self.version

    def _batch_path(self, step: int) -> Path:
        return self.batches / f"step-{step:06d}.safetensors"
