"""Makes harder tasks while RL runs, and checks tasks that no rollout solved.

Functions are drawn in a process of their own, files are written and read in threads, and gates run in boxes, so that
rollouts are not held up. A task is planned in the record (``record.py``) before it is made, and is dispatched only
after it has passed every gate and is recorded with its digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from woodshed.grading.settings import GradingSettings
from woodshed.grading.verify import grade
from woodshed.record.fault import Fault
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskError
from woodshed.rl.conservation import IS_FORK
from woodshed.rl.ledger import Ledger
from woodshed.rollout.failures import INFRA
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend
from woodshed.tasks.generators.synthetic import bugs_of, draw_combined, write_synthetic
from woodshed.tasks.validate.gates import check_task

from .choose import GrowthSettings, SeenGroup, kinds_to_make
from .record import GrowthRecord, Plan

log = logging.getLogger(__name__)


class Growth:
    """Makes and checks tasks for the controller.

    ``tasks``: all training tasks of the run by name; new tasks are added to it. ``folder``: where new tasks are
    written. ``seed``: with the pass rates, determines which tasks are made and their content. ``notice`` gets a message
    for each task that is taken out. Raises TaskError if the files of a task that an earlier start made have changed.
    """

    def __init__(
        self,
        settings: GrowthSettings,
        tasks: dict[str, Task],
        ledger: Ledger,
        record: GrowthRecord,
        store: TrajectoryStore,
        *,
        folder: Path,
        seed: int,
        backend: Backend,
        layers: LayerStore,
        grading: GradingSettings,
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.settings, self.tasks, self.ledger, self.record, self.store = settings, tasks, ledger, record, store
        self.folder, self.seed, self.notice = folder, seed, notice
        self.backend, self.layers, self.grading = backend, layers, grading
        self._planned = asyncio.Event()
        self._checking = asyncio.Semaphore(1)
        self._made: list[str] = []
        self._prompts: dict[str, str] = {}
        for name, digest in record.made().items():
            self._add(_load(folder / name.rpartition("/")[2], digest))

    def choose(self, dispatched: Collection[str]) -> Task | None:
        """Return the first made task that was not dispatched; None if there is none."""
        return next((self.tasks[name] for name in self._made if name not in dispatched), None)

    def count(self, dispatched: Collection[str]) -> int:
        """Return the number of made tasks in ``dispatched``."""
        return sum(name in dispatched for name in self._made)

    def plan(self, step: int) -> None:
        """Decide which tasks are made after the batch of ``step``. Repeated calls change nothing."""
        if not self.settings.make:
            return
        groups = self.ledger.decided_groups(step - self.settings.window + 1, step)
        self.record.plan(step, kinds_to_make(self._seen(groups), self.settings, self.seed, step))
        self._planned.set()

    async def run(self) -> None:
        """Make the planned tasks, one after the other. Ends only by raising."""
        while True:
            self._planned.clear()
            for plan in self.record.planned():
                try:
                    await self._make(plan)
                except (Fault, OSError) as error:  # a fault of the machine or sandbox: tried again after the next batch
                    log.warning("a harder task waits: %s", error)
                    break
            await self._planned.wait()

    async def sound(self, task: Task, step: int) -> bool:
        """Return False if the reference solution of an unsolved task fails twice in a row, else True.

        At most ``check`` tasks are checked while the batch of ``step`` is filled, each once; others count as sound.
        """
        async with self._checking:
            known = self.record.checked()
            if task.name in known:
                return known[task.name]
            solution = await asyncio.to_thread(task.solution_files)
            if self.record.checks_of(step) >= self.settings.check or not solution:
                return True
            try:
                why = await self._failure(task, solution)
            except (Fault, OSError) as error:
                log.warning("%s was not checked: %s", task.name, error)
                return True
            self.record.note_checked(task.name, step, sound=not why, why=why)
        if why:
            log.warning("%s is taken out: %s", task.name, why)
            self.notice(f"{task.name} is taken out: {why}")
        return not why

    def taken_out(self) -> set[str]:
        """Return the names of the tasks whose reference solution failed."""
        return {task for task, sound in self.record.checked().items() if not sound}

    async def _failure(self, task: Task, solution: Mapping[str, bytes]) -> str:
        """Return why the reference solution fails; '' if it passes one of two gradings. They use no cache."""
        for _ in range(2):
            try:
                outcome = await grade(task, solution, self.backend, self.layers, settings=self.grading)
            except TaskError as error:
                return str(error)
            if outcome.resolved:
                return ""
        failed = [f"{test} {status}" for test, status in outcome.tests.items() if status != "passed"]
        return f"its solution fails: {', '.join(failed[:3])}" + (f" ({outcome.detail})" if outcome.detail else "")

    async def _make(self, plan: Plan) -> None:
        name = f"woodshed/synthetic-train-{self.seed}-grown-{plan.step:06d}-{plan.number:02d}"
        path = self.folder / name.rpartition("/")[2]

        def write() -> Task:
            spec = draw_combined(name, plan.bugs, split="train", seed=self.seed)
            return write_synthetic(spec, path)

        try:
            task = await asyncio.to_thread(write)
        except RuntimeError as error:
            self.record.note_refused(plan, str(error))
            return
        report = await check_task(task, self.backend, self.layers)
        prompt, digest = await asyncio.to_thread(self._examine, task)
        twin = self._prompts.get(prompt, "")
        if why := str(report) if report.failures else f"{twin} has the same files" if twin else "":
            log.warning("%s is not used: %s", name, why)
            self.record.note_refused(plan, why)
            return
        self.record.note_made(plan, name, digest)
        self._add(task)
        self._prompts[prompt] = name

    def _examine(self, task: Task) -> tuple[str, str]:
        """Return (prompt digest, task digest). The first call computes the prompt digests of all other tasks."""
        if not self._prompts:
            self._prompts = {_prompt(other): name for name, other in dict(self.tasks).items()}
        return _prompt(task), task.digest

    def _add(self, task: Task) -> None:
        self.tasks[task.name] = task
        self._made.append(task.name)

    def _seen(self, groups: Sequence[tuple[str, str]]) -> list[SeenGroup]:
        """Return bugs and results of ``groups``, (id, task). Members lost to infrastructure and forks do not count."""
        names = ", ".join(f"'{group}'" for group, _ in groups)
        graded = f"source = 'train' AND status != '{INFRA}' AND NOT {IS_FORK}"
        of_group: dict[str, list[bool]] = {group: [] for group, _ in groups}
        for row in self.store.rows(f"{graded} AND group_id IN ({names})"):
            of_group[row["group_id"]].append(bool(row["resolved"]))
        return [SeenGroup(bugs_of(self.tasks[task]), sum(of_group[id]), len(of_group[id])) for id, task in groups]


def _prompt(task: Task) -> str:
    """Return the digest of what an agent is given, the instruction and the files, independent of the task's name."""
    digest = hashlib.sha256(task.instruction.encode())
    for path, data in sorted(task.workspace_files().items()):
        digest.update(f"{len(path)}:{path}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def _load(path: Path, digest: str) -> Task:
    task = Task.load(path)
    if task.digest != digest:
        raise TaskError(
            f"{path}: the run made this task and its files have changed since, so that its results would be of two "
            "tasks; restore them, or start over with --fresh"
        )
    return task
