"""The controller: keeps rollouts in flight, groups them, hands batches to the trainer, never waits for a whole step.

Invariants:
- A prompt is dispatched only once (ledger).
- Every dispatched rollout is stored exactly once (its id is decided at dispatch).
- A batch is decided in the ledger before its file appears, and its file can be made again.
- Staleness is bounded at dispatch (AReaL, arXiv:2505.24298, section 5.1) and by dropping ready groups with too old
  tokens, however many rollouts may run at a time (``concurrency.py``).
- Batches take groups in the order of dispatch. Quick groups overtake a slow one only within a window (``rl.window``),
  so that slow groups are trained too, instead of being overtaken until they are too old.
- Every rollout gets one fate in the ledger (``conservation.py``), before the batch file is written or when its group
  is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from woodshed.gateway.client import GatewayError
from woodshed.record.history import read_history
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Trajectory
from woodshed.rollout.failures import FAULT, INFRA, FailureWatch, RunFailing, RunPaused, loss_reason
from woodshed.rollout.forking import ForkPoint
from woodshed.rollout.rollout import Arena, rollout
from woodshed.train.batch import TrainBatch
from woodshed.train.metrics_log import MetricsLog

from .concurrency import Slots, WaitMeter, Waits, adapt
from .conservation import IS_FORK
from .curriculum import Curriculum, replay
from .forks import planned, roots
from .growth.growth import Growth
from .health.measure import infra_share
from .health.watch import HealthWatch
from .ledger import GroupRow, Ledger, OutOfTasks
from .settings import RLSettings


def may_dispatch(used: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Return whether one more group can be dispatched without exceeding ``max_staleness`` when it is trained.

    ``used``: number of groups dispatched for training so far; ``version``: newest published version. The next group is
    trained at version ``used // groups_per_step``, which may exceed ``version`` by at most ``max_staleness``. A group
    that others overtake is trained later; ``rl.window`` bounds how much later.
    """
    return used // groups_per_step - version <= max_staleness


def lost(group: Iterable[Trajectory]) -> dict[str, str]:
    """Return the fates of the rollouts of a group that infrastructure errors ended, and of abandoned forks."""
    return {t.id: loss_reason(t) for t in group if t.status == INFRA}


def token_age(trajectories: Iterable[Trajectory], version: int) -> int:
    """Return the number of versions between a group's oldest sampled token and ``version``; 0 if none was sampled."""
    oldest = [low for low, _ in (t.version_range() for t in trajectories) if low >= 0]
    return max(0, version - min(oldest)) if oldest else 0


BuildBatch = Callable[[list[list[Trajectory]], int], tuple[TrainBatch, dict[str, Any]]]

log = logging.getLogger(__name__)


class Controller:
    """Dispatches rollouts and forms batches until the trainer has published ``settings.steps`` versions.

    ``head()`` returns the newest published version; ``build`` turns groups into a batch and its statistics, and is
    called in the order of steps; ``least``: minimum number of graded rollouts of a group that is trained; ``flat``
    returns True if all token weights of a group would be 0, for dynamic sampling; ``growth`` makes further tasks and
    checks unsolved ones; ``health`` runs concurrently and may pause the run; ``notice`` gets a message when the server
    cannot load new weights; ``all_steps``: steps of the whole run, if ``settings.steps`` ends one of several rounds.
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
        flat: Callable[[list[Trajectory]], bool] = lambda _: False,
        growth: Growth | None = None,
        health: HealthWatch | None = None,
        notice: Callable[[str], None] = lambda _: None,
        all_steps: int | None = None,
    ):
        needed = settings.steps * settings.groups_per_step
        if len(tasks) < needed:
            raise OutOfTasks(
                f"rl.steps x rl.groups_per_step needs {needed} tasks and there are {len(tasks)}: a prompt is never "
                "trained twice; lower rl.steps or make more training tasks"
            )
        self.arena, self.ledger, self.store, self.settings = arena, ledger, store, settings
        self.batches, self.head, self.build = batches, head, build
        self.notice, self.least, self.flat, self.growth, self.health = notice, least, flat, growth, health
        self.metrics = MetricsLog(metrics)
        self.tasks = {t.name: t for t in tasks} if growth is None else growth.tasks
        self.order = sorted(t.name for t in tasks)
        random.Random(f"order-{seed}").shuffle(self.order)
        self.curriculum = Curriculum(settings.curriculum, seed) if settings.curriculum.order == "variance" else None
        for task in tasks if self.curriculum is not None else ():
            ratings = read_history(task).ratings
            if self.curriculum is not None and ratings:
                self.curriculum.set_prior(task, max(ratings, key=lambda rating: rating.date))
        self.all_steps = all_steps or settings.steps
        self.version = 0
        self.engine: dict[str, Any] = {}
        self.failures = FailureWatch(settings.max_infra_rate, settings.infra_window)
        self._slots = Slots(settings.concurrency)
        self._meter = WaitMeter()
        self._waits: Waits | None = None
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._open_members = 0
        self._ready: dict[str, list[Trajectory]] = {}
        self._resumable: set[str] = set()
        """Ids of rollouts that an earlier process began and the gateway still has open."""

    async def run(self) -> None:
        self.batches.mkdir(parents=True, exist_ok=True)
        self.version = self.head()
        self._meter.published(self.version)
        self._resumable = await self._left_open()
        self._recover()
        watchers = [asyncio.create_task(self._watch_versions())]
        if self.health is not None:
            watchers.append(asyncio.create_task(self.health.run()))
        if self.growth is not None:
            watchers.append(asyncio.create_task(self.growth.run()))
        for watcher in watchers:  # they end only by raising
            watcher.add_done_callback(lambda _: self._changed.set())
        try:
            while self.version < self.settings.steps:
                if self.health is not None:
                    self.health.look()  # before more is dispatched; its own task looks for stalls
                self._dispatch()
                self._form_batches()
                await self._adapt()
                await self._changed.wait()
                self._changed.clear()
                for done in [t for t in (*self._running, *watchers) if t.done()]:
                    done.result()
                    self._running.discard(done)
        finally:
            for task in (*self._running, *watchers):
                task.cancel()
            await asyncio.gather(*self._running, *watchers, return_exceptions=True)
        if self.health is not None:
            self.health.look()  # for steps trained since the last look, or while an earlier process paused
        for row in (*self.ledger.open_groups(), *self.ledger.ready_groups()):
            self.ledger.finish(row.id, "unused", fates=lost(self.store.group(row.id)))
        self.store.compact(1)

    async def _left_open(self) -> set[str]:
        """Return the ids of trajectories open at the gateway; close those that no open group waits for, and forks,
        which start over."""
        admin, wanted = self.arena.admin, self.ledger.in_open_groups()
        try:
            await admin.wait_until_up(self.arena.patience)
            found = {row["id"] for row in await admin.list() if row["source"] == "train"}
            for id in found - wanted:
                await admin.delete(id)
        except (httpx.HTTPError, GatewayError) as error:
            log.warning("rollouts of before are run again: %s: %s", type(error).__name__, error)
            return set()
        return found & wanted

    def _recover(self) -> None:
        """After a restart, write batches that the trainer still needs again and relaunch open groups."""
        for step, groups in self.ledger.batches().items():
            if step > self.version and not self._batch_path(step).exists():
                self._write_batch(step, [self.store.group(g) for g in groups])
        self._grow(self.ledger.newest_step())
        if self.curriculum is not None:
            broken = set() if self.growth is None else self.growth.taken_out()
            finished = [row for row in self.ledger.finished_groups() if row.task not in broken]
            rated = ((self.tasks[r.task], roots(self.store.group(r.id)), r.version) for r in finished)
            replay(self.curriculum, rated)
        for row in self.ledger.open_groups():
            self._launch(row)

    def _dispatch(self) -> None:
        settings = self.settings
        wanted = settings.steps * settings.groups_per_step
        while self._open_members < self._slots.limit:
            used = self.ledger.capacity_used()
            if used >= wanted or not may_dispatch(used, self.version, settings.groups_per_step, settings.max_staleness):
                return
            position = self.ledger.next_position()
            size = min(settings.probes or settings.group_size, settings.group_size)
            self._launch(self.ledger.dispatch(self._next_task(position), position, self.version, size))

    async def _adapt(self) -> None:
        """Adapt the number of rollouts in flight to the waits of the steps that have begun since the last call."""
        for waits in self._meter.take():
            self._waits, full = waits, self._slots.take_full()
            if not self.settings.adaptive.enabled:
                continue
            most, before = self.settings.concurrency, self._slots.limit
            limit = adapt(before, waits, self.settings.adaptive, full=full, most=most)
            if limit != before:
                await self._slots.set_limit(limit)
                self._changed.set()  # there may be room to dispatch

    def _used_up(self) -> str:
        groups = ", ".join(f"{count} {state}" for state, count in sorted(self.ledger.counts().items()))
        remedy = "make more training tasks, or lower rl.steps"
        if self.settings.dynamic_sampling.enabled:
            remedy += ", rl.dynamic_sampling.max_share (tasks of flat groups are not used again) or turn it off"
        return (
            f"all {len(self.tasks)} training tasks were used ({groups}) after {len(self.ledger.batches())} of "
            f"{self.settings.steps} batches; {remedy}. What was swept as stale or failed is not used again"
        )

    def _next_task(self, position: int) -> str:
        """Return the name of the task to dispatch: one that the run itself made, else one chosen by the curriculum or
        the next in order. Raises OutOfTasks."""
        used: set[str] = set()
        if self.growth is not None or self.curriculum is not None:
            used = self.ledger.dispatched()
        index = position
        if self.growth is not None:
            if (made := self.growth.choose(used)) is not None:
                return made.name
            index -= self.growth.count(used)
        if index >= len(self.order):
            raise OutOfTasks(self._used_up())
        if self.curriculum is None:
            return self.order[index]
        unused = [self.tasks[name] for name in self.order if name not in used]
        return self.curriculum.choose(unused, position, self.version / self.all_steps).name

    def _launch(self, row: GroupRow) -> None:
        known = {t.id: t for t in self.store.group(row.id)}
        members = self.ledger.members(row.id)
        self._open_members += len(members)
        task = asyncio.create_task(self._run_group(row, members, known))
        task.add_done_callback(lambda _: self._changed.set())
        self._running.add(task)

    async def _run_group(self, row: GroupRow, members: Sequence[str], known: Mapping[str, Trajectory]) -> None:
        await asyncio.gather(*(self._run_member(row, member, known) for member in members))
        if rest := self._rest(row, members):
            self._open_members += len(rest)
            await asyncio.gather(*(self._run_member(row, member, known) for member in rest))
        group = self.store.group(row.id)
        graded = [t for t in roots(group) if t.status != INFRA]
        if len(graded) >= self.least and not await self._sound(self.tasks[row.task], graded):
            fates = {t.id: "broken_task" for t in group} | lost(group)
            self.ledger.finish(row.id, "failed", fates=fates, step=self.ledger.newest_step() + 1)
            self._changed.set()
            return
        step = self.ledger.newest_step() + 1
        state = "ready" if len(graded) >= self.least else "failed"
        if state == "ready" and self.settings.dynamic_sampling.enabled and self.flat(group):
            state = "flat" if self._may_replace(step) else "ready"
        self.ledger.finish(row.id, state, fates=lost(group), step=None if state == "ready" else step)
        if self.curriculum is not None:
            self.curriculum.update(self.tasks[row.task], graded, row.version)
        if state == "ready":
            self._ready[row.id] = group
        self._changed.set()

    def _rest(self, row: GroupRow, members: Sequence[str]) -> list[str]:
        """Dispatch the other members of a group if some of its probes solved the task and some did not; return them."""
        if not self.settings.probes or len(members) >= self.settings.group_size:
            return []
        graded = [t for t in roots(self.store.group(row.id)) if t.status != INFRA]
        if len({bool(t.outcome and t.outcome.resolved) for t in graded}) < 2:
            return []
        return self.ledger.extend(row.id, self.settings.group_size)

    async def _sound(self, task: Task, graded: Sequence[Trajectory]) -> bool:
        """Return False if no rollout solved the task and a check finds that its reference solution fails."""
        if self.growth is None or any(t.outcome is not None and t.outcome.resolved for t in graded):
            return True
        return await self.growth.sound(task, self.ledger.newest_step() + 1)

    def _may_replace(self, step: int) -> bool:
        """Return whether dynamic sampling may replace one more group while the batch of ``step`` is filled. Raises
        RunPaused if not and ``rl.dynamic_sampling.beyond`` is ``stop``."""
        settings = self.settings.dynamic_sampling
        # More groups than a batch takes may be waiting behind a slow one; they were sampled among as many flat ones.
        limit = settings.limit(max(self.settings.groups_per_step, len(self.ledger.ready_groups())))
        if len(self.ledger.flat_groups(step)) < limit:
            return True
        if settings.beyond == "stop":
            raise RunPaused(
                f"dynamic sampling: {limit} groups with equal rewards were replaced while batch {step} was filled "
                f"(rl.dynamic_sampling.max_share = {settings.max_share:g}), and one more is there: the tasks are too "
                "easy or too hard for this policy.\nAll work is kept. Look at the pass rates (`woodshed report RUN`); "
                'give `woodshed run RUN --set rl.dynamic_sampling.beyond="train"` to go on with such groups in the '
                "batch, or a larger rl.dynamic_sampling.max_share"
            )
        return False

    async def _run_member(self, row: GroupRow, member: str, known: Mapping[str, Trajectory]) -> None:
        """Run one member of a group and its forks. A member that an infrastructure error ended is replaced by up to
        ``rl.replacements`` fresh ones; ``known``: trajectories that an earlier process stored, by id."""
        id = member
        try:
            for number in range(1, self.settings.replacements + 2):
                trajectory = known.get(id) or await self._run_rollout(row, id)
                hopeless = trajectory.labels.get(FAULT) == "task"
                if trajectory.status != INFRA or hopeless or number > self.settings.replacements:
                    break
                id = self.ledger.replace(row.id, member, number)
        finally:
            self._open_members -= 1
            self._changed.set()
        await self._run_forks(row, trajectory, known)

    async def _run_forks(self, row: GroupRow, root: Trajectory, known: Mapping[str, Trajectory]) -> None:
        """Run the forks of a finished member. A lost fork is not replaced; its node then has fewer siblings."""
        forks = planned(root, self.settings.forks)
        if not forks:
            return
        self.ledger.fork(row.id, list(forks))
        missing = {id: point for id, point in forks.items() if id not in known}
        self._open_members += len(missing)
        try:
            await asyncio.gather(*(self._run_rollout(row, id, point) for id, point in missing.items()))
        finally:
            self._open_members -= len(missing)
            self._changed.set()

    async def _run_rollout(self, row: GroupRow, id: str, fork: ForkPoint | None = None) -> Trajectory:
        async with self._slots:
            task = self.tasks[row.task]
            resume, self._resumable = id in self._resumable, self._resumable - {id}
            trajectory = await rollout(
                self.arena,
                task,
                id=id,
                group=row.id,
                source="train",
                labels=task.labels,
                fork=fork,
                resume=resume,
            )
        self.store.add(trajectory)
        self.failures.update(trajectory)
        return trajectory

    def _form_batches(self) -> None:
        wanted = self.settings.groups_per_step
        while (step := self.ledger.newest_step() + 1) <= self.settings.steps:
            self._drop_stale(step)
            chosen = [row.id for row in self.ledger.ready_groups(self.settings.batch_window)][:wanted]
            if len(chosen) < wanted:
                return
            self.ledger.batch(step, chosen)
            self._grow(step)
            groups = [self._ready_group(id) for id in chosen]
            for id in chosen:
                del self._ready[id]
            self._write_batch(step, groups)
            self.store.compact()

    def _drop_stale(self, step: int) -> None:
        """Drop ready groups with too old tokens, whatever their place in the window, while ``step`` is filled."""
        for row in self.ledger.ready_groups():
            group = self._ready_group(row.id)
            if token_age(group, self.version) > self.settings.max_token_age:
                self.ledger.finish(row.id, "stale", fates=lost(group), step=step)
                del self._ready[row.id]
                self._changed.set()  # another group can be dispatched in its place

    def _ready_group(self, id: str) -> list[Trajectory]:
        """Return a ready group; one that an earlier process finished is read from the store, once."""
        if id not in self._ready:
            self._ready[id] = self.store.group(id)
        return self._ready[id]

    def _grow(self, step: int) -> None:
        """Plan the tasks to make after the batch of ``step``, unless it is the last."""
        if self.growth is not None and 0 < step < self.settings.steps:
            self.growth.plan(step)

    def _write_batch(self, step: int, groups: list[list[Trajectory]]) -> None:
        batch, statistics = self.build(groups, step)
        self.ledger.settle(step, statistics.pop("fates"))
        flat = self.ledger.flat_groups(step)
        dropped = [self.store.group(group) for group in self.ledger.dropped_groups(step)]
        line = {
            "step": step,
            "time": time.time(),
            "version": self.version,
            "staleness": max(token_age(g, step - 1) for g in groups),
            "ledger": self.ledger.counts(),
            "flat_groups": len(flat),
            "infra_share": infra_share([*dropped, *groups]),
            "sampled_pass_rate": self._pass_rate([*flat, *(g[0].group for g in groups)]),
            "replacements": self.ledger.replacements(),
            "forks_dispatched": self.ledger.forks(),
            "slots_busy": self._slots.take_share(),
            "concurrency": self._slots.limit,
            "waits": {} if self._waits is None else asdict(self._waits),
            "engine": self.engine,
            "failures": dict(self.failures.counts),
            **({} if self.growth is None else {"growth": self.growth.record.counts()}),
            **statistics,
        }
        self.metrics.append(line)  # before the file: a batch whose file is there is not written again
        batch.save(self._batch_path(step))
        self._meter.formed(step)

    def _pass_rate(self, groups: Sequence[str]) -> float:
        """Return the pass rate of the graded rollouts of these groups, without forks; 0 if there are none. With
        ``rl.probes`` only that many of each group count, since only groups that disagree have more."""
        names = ", ".join(f"'{group}'" for group in groups)
        graded = f"source = 'train' AND status != '{INFRA}' AND NOT {IS_FORK}"
        of_group: dict[str, list[bool]] = {group: [] for group in groups}
        for row in sorted(self.store.rows(f"{graded} AND group_id IN ({names})"), key=lambda row: row["id"]):
            of_group[row["group_id"]].append(bool(row["resolved"]))
        solved = [found for group in of_group.values() for found in group[: self.settings.probes]]
        return sum(solved) / len(solved) if solved else 0.0

    async def _watch_versions(self) -> None:
        """Tell the server to load each new version. Raises RunFailing if it cannot for too long."""
        failing: float | None = None  # since when
        while True:
            head = await asyncio.to_thread(self._look)
            if head > self.version:
                self._meter.published(head)
                try:
                    version = await self.arena.admin.follow(head)
                    self.engine = await self.arena.admin.engine()
                except (httpx.HTTPError, GatewayError) as error:  # retried; rollouts wait meanwhile
                    now = time.monotonic()
                    failing = now if failing is None else failing
                    if now - failing > 2 * self.arena.patience:
                        raise RunFailing(
                            f"the policy server has not taken version {head} for {now - failing:.0f} s: "
                            f"{type(error).__name__}: {error}"
                        ) from error
                    log.warning("version %d: %s", head, error)
                    if isinstance(error, GatewayError):  # e.g. damaged weights: the server keeps its current ones
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
        """Return the newest version of the weight chain; the version seen last if its store does not answer."""
        try:
            return self.head()
        except OSError as error:
            log.warning("weights: %s", error)
            return self.version

    def _batch_path(self, step: int) -> Path:
        return self.batches / f"step-{step:06d}.safetensors"
