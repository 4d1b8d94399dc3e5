"""Verdicts on stored episodes, each made once: whether an episode cheated (a line of ``cheats.jsonl``), and its values
on the axes other than correctness (``axes.jsonl``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from woodshed.evaluate.axes import Axis, measured
from woodshed.evaluate.cheating import judge_cheating, judged
from woodshed.evaluate.run import group_name
from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite
from woodshed.record.jsonl import JsonLines
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.record.trajectory import Outcome, Trajectory
from woodshed.rollout.failures import INFRA
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend

from .plan import EvaluationFolder
from .results import label, read_regraded, stored_rows


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
    """Judge the stored episodes that have no verdict yet. ``suites``: by the name of their evaluation in the store.

    Raises SandboxError if the sandbox fails; the next start judges the rest.
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


def measure_axes(
    folder: EvaluationFolder,
    settings: Mapping[str, Any],
    store: TrajectoryStore,
    suites: Sequence[Suite],
    axes: Sequence[Axis],
    progress: Callable[[int, int, str], None],
    *,
    jobs: int,
) -> None:
    """Measure the episodes that lack a value of an axis, or whose outcome or task was changed before a regrade. Raises
    ValueError, naming the axis, if a user-defined axis fails."""
    lines, regraded = JsonLines(folder.axes), read_regraded(folder)
    known = {row["id"]: row for row in lines.rows()}
    names = {axis.name for axis in axes}
    digests = {(suite.name, task): digest for suite in suites for task, digest in suite.digests.items()}
    found: list[tuple[str, Task, dict[str, Any] | None]] = []
    for number in range(len(settings["policies"])):
        for row, suite, task in stored_rows(settings, store, number, suites):
            again = regraded.get(row["id"])
            resolved = bool((again or row)["resolved"])
            before = known.get(row["id"], {"values": {}})
            first = settings["suites"][suite.name]["tasks"][task.name]["digest"]
            same = before.get("task_digest", first) == digests[suite.name, task.name]
            done = before["values"].keys() >= names and before["resolved"] == resolved and same
            if row["status"] != INFRA and not done:
                found.append((row["id"], task, again))

    def measure(item: tuple[Task, Trajectory, Outcome]) -> dict[str, float | None]:
        return measured(axes, *item)

    with ThreadPoolExecutor(jobs) as pool:  # terms run programs; the store is read here, a few episodes ahead
        for start in range(0, len(found), 4 * jobs):
            ready = []
            for id, task, again in found[start : start + 4 * jobs]:
                trajectory = store.get(id)
                if trajectory is not None and trajectory.outcome is not None:
                    newest = {} if again is None else {"resolved": bool(again["resolved"]), "tests": again["tests"]}
                    ready.append((task, trajectory, replace(trajectory.outcome, **newest)))
            for (task, trajectory, outcome), values in zip(ready, pool.map(measure, ready), strict=True):
                lines.append(
                    {"id": trajectory.id, "resolved": outcome.resolved, "task_digest": task.digest, "values": values}
                )
            progress(min(start + 4 * jobs, len(found)), len(found), "measuring quality and interaction")
