"""``woodshed evaluate regrade``: grade and judge stored submissions again, with the current version of the tasks and
without running an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from woodshed.evaluate.axes import axes_of
from woodshed.evaluate.cheating import judge_cheating, judged
from woodshed.evaluate.comparison import Price
from woodshed.evaluate.pairs import choose_baselines
from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite
from woodshed.grading.heldout import EndlessError
from woodshed.grading.settings import GradingSettings
from woodshed.grading.verify import grade
from woodshed.record.jsonl import JsonLines
from woodshed.record.run_directory import DirectoryError
from woodshed.record.settings import is_reference
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task, TaskError
from woodshed.rollout.failures import INFRA
from woodshed.sandbox.backends.by_name import open_backend
from woodshed.sandbox.protocol import SandboxError
from woodshed.stages.boxes import layer_store
from woodshed.stages.tasks import key_digest, with_key

from .aspects import agreements, episode_values
from .judge import measure_axes
from .plan import EvaluationFolder, read_settings
from .policies import EvaluationError
from .results import (
    collect_policies,
    compute_results,
    evaluation_name,
    last_regrade,
    read_axes,
    read_results,
    write_results,
)

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Regraded:
    """Result of a regrade. ``graded``: number of episodes that got an outcome; ``changed``: ids of those whose
    ``resolved`` differs from the first grading; ``left_out``: reason by id for episodes that could not be graded
    again."""

    graded: int
    changed: tuple[str, ...]
    left_out: dict[str, str]


@dataclass(frozen=True)
class _Item:
    id: str
    task: Task
    resolved: bool
    grading: GradingSettings


def regrade(root: Path, progress: Progress, *, jobs: int, backend: str = "namespace") -> Regraded:
    """Grade every finished episode of an evaluation again; the outcomes are stored in addition to the first ones.

    The results are written again, from the newest outcomes. Raises EvaluationError.
    """
    folder = EvaluationFolder(root.absolute())
    settings = read_settings(folder)
    if settings is None:
        raise EvaluationError(f"{root} holds no evaluation (no evaluation.json); give the folder of --out")
    with folder.claimed():
        try:
            with closing(TrajectoryStore(folder.trajectories)) as store:
                items = _items(folder, settings, store)
                before = read_results(folder) or {}
                found = asyncio.run(_regrade(folder, store, items, progress, jobs, backend))
                own = {name for values in read_axes(folder).values() for name in values if is_reference(name)}
                measure_axes(folder, settings, store, load_tasks(settings), axes_of(sorted(own)), progress, jobs=jobs)
                _rewrite(folder, settings, store, before)
                return found
        except (DirectoryError, SandboxError, TaskError, ValueError) as error:
            raise EvaluationError(str(error)) from error


def _items(folder: EvaluationFolder, settings: dict[str, Any], store: TrajectoryStore) -> list[_Item]:
    found = []
    if not {"suites", "policies"} <= settings.keys():
        raise EvaluationError(f"{folder.settings} is damaged (no suites or policies); choose another folder")
    suites = load_tasks(settings)
    for number, about in enumerate(settings["policies"].values()):
        grading = with_key(GradingSettings.model_validate(about["grading"]), folder.root)
        if settings.get("held_out_key", key_digest(grading)) != key_digest(grading):
            raise EvaluationError(f"{folder.root / 'held_out.key'} is not the key of this evaluation; put it back")
        for suite in suites:
            tasks = {task.name: task for task in suite.tasks}
            name = evaluation_name(number, suite.name)
            for row in store.rows(f"source = 'eval' AND group_id LIKE '{name}:%'", order_by="id"):
                if row["status"] != INFRA and row["task"] in tasks:
                    found.append(_Item(row["id"], tasks[row["task"]], bool(row["resolved"]), grading))
    return found


def load_tasks(settings: dict[str, Any]) -> list[Suite]:
    """Load the evaluated tasks from their recorded paths. Raises TaskError if one is missing or damaged."""
    return [
        Suite(name, about["source"], tuple(Task.load(each["path"]) for each in about["tasks"].values()))
        for name, about in settings["suites"].items()
    ]


def _rewrite(
    folder: EvaluationFolder, settings: dict[str, Any], store: TrajectoryStore, before: dict[str, Any]
) -> None:
    """Rewrite ``results.json`` with the new outcomes; baseline, prices and notes stay those of the last evaluation,
    ``before``, empty if it was interrupted."""
    suites = load_tasks(settings)
    prices = {name: Price(*amounts) for name, amounts in before.get("prices", {}).items()}
    judge = str(before.get("judge", ""))
    policies = collect_policies(folder, settings, store, suites, prices, episode_values(folder, judge))
    strict = [policy for policy in policies if not policy.strict]
    wanted = before.get("baselines") or filter(None, [before.get("baseline")])
    results = compute_results(
        policies,
        suites,
        settings,
        baselines=choose_baselines([p.name for p in strict], [p.source for p in strict], list(wanted)),
        across_harnesses=before.get("across_harnesses", False),
        note=before.get("note", ""),
        regraded=last_regrade(folder),
        judge=judge,
        agreements=agreements(folder, judge),
    )
    write_results(folder, results)


async def _regrade(
    folder: EvaluationFolder,
    store: TrajectoryStore,
    items: list[_Item],
    progress: Progress,
    jobs: int,
    backend_name: str,
) -> Regraded:
    submissions = SubmissionStore(folder.submissions)
    outcomes: dict[str, dict[str, Any]] = {}
    changed: list[str] = []
    left_out: dict[str, str] = {}
    backend, layers, slots = open_backend(backend_name), layer_store(), asyncio.Semaphore(jobs)

    async def one(item: _Item) -> None:
        async with slots:
            stored, outcome = submissions.get(item.id), None
            if stored is None:
                left_out[item.id] = "its submission is not stored"
            else:
                try:
                    outcome = await grade(item.task, stored.submission, backend, layers, settings=item.grading)
                except EndlessError as error:  # caused by the task or a busy machine; says nothing about the others
                    left_out[item.id] = str(error)
            if stored is not None and outcome is not None:
                outcomes[item.id] = {**asdict(outcome), "task_digest": item.task.digest}
                if judged(item.task) and (episode := store.get(item.id)) is not None:
                    verdict = await judge_cheating(
                        item.task, episode.events, stored.submission, backend, layers, resolved=outcome.resolved
                    )
                    outcomes[item.id]["cheating"] = list(verdict.reasons)
                if outcome.resolved != item.resolved:
                    changed.append(item.id)
        progress(len(outcomes) + len(left_out), len(items), f"{len(changed)} outcomes changed")

    try:
        if not (probe := backend.probe()).ok:
            raise EvaluationError(f"no sandbox here: {'; '.join(probe.reasons)}")
        await asyncio.gather(*(one(item) for item in items))
    finally:
        await backend.close()
    when = datetime.now(UTC).isoformat(timespec="seconds")
    JsonLines(folder.regraded).append({"when": when, "outcomes": dict(sorted(outcomes.items()))})
    return Regraded(len(outcomes), tuple(sorted(changed)), left_out)
