"""Judging stored episodes of tasks that tempt to cheat; each verdict is written once, as a line of ``cheats.jsonl``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from woodshed.evaluate.cheating import judge_cheating, judged
from woodshed.evaluate.run import group_name
from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite
from woodshed.record.jsonl import JsonLines
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import INFRA
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

from .plan import EvaluationFolder
from .results import label


async def judge_episodes(
    folder: EvaluationFolder,
    store: TrajectoryStore,
    suites: Mapping[str, Suite],
    backend: Backend,
    layers: LayerStore,
    progress: Callable[[int, int, str], None],
    *,
    jobs: int,
) -> None:
    """Judge the stored episodes without a verdict. ``suites``: by the name of their evaluation in the store.

    Raises SandboxError if the sandbox fails; the next start judges what is open.
    """
    verdicts = JsonLines(folder.verdicts)
    known = {row["id"] for row in verdicts.rows()}
    submissions = SubmissionStore(folder.submissions)
    found: list[tuple[str, Task]] = []
    for name, suite in suites.items():
        tasks = {group_name(name, label(task)): task for task in suite.tasks if judged(task)}
        if not tasks:
            continue
        for row in store.rows(f"source = 'eval' AND group_id LIKE '{name}:%' AND status != '{INFRA}'", order_by="id"):
            if row["group_id"] in tasks and row["id"] not in known:
                found.append((row["id"], tasks[row["group_id"]]))
    slots, done = asyncio.Semaphore(jobs), 0

    async def one(id: str, task: Task) -> None:
        nonlocal done
        async with slots:
            trajectory, stored = store.get(id), submissions.get(id)
            if trajectory is not None and stored is not None:
                resolved = bool(trajectory.outcome and trajectory.outcome.resolved)
                verdict = await judge_cheating(
                    task, trajectory.events, stored.submission, backend, layers, resolved=resolved
                )
                verdicts.append({"id": id, "reasons": list(verdict.reasons)})
        done += 1
        progress(done, len(found), "judging what the episodes left behind")

    await asyncio.gather(*(one(id, task) for id, task in found))
