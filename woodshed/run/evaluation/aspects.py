"""``woodshed evaluate --judge``: a model answers questions (aspects) about every stored episode, each in several
independent readings; answers are stored in ``aspects.jsonl``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from woodshed.evaluate.aspects import ASPECTS, READINGS, agreement_of, answers_of, read_aspect
from woodshed.evaluate.submissions import SubmissionStore
from woodshed.evaluate.suites.base import Suite
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.monitors.base import MonitoredEpisode
from woodshed.record.jsonl import JsonLines, read_jsonl
from woodshed.record.store import TrajectoryStore
from woodshed.record.task import Task
from woodshed.rollout.failures import INFRA

from .plan import EvaluationFolder
from .policies import EvaluationError
from .results import read_axes, stored_rows


def judge_server(judge: str, key_env: str) -> tuple[str, str, str]:
    """Return (base URL, key, model) of ``URL#MODEL``. Raises EvaluationError."""
    address, _, model = judge.partition("#")
    if not (urlsplit(address).hostname and model):
        raise EvaluationError(f"--judge {judge}: write http://HOST:PORT/v1#MODEL")
    key = os.environ.get(key_env, "") if key_env else "none"
    if not key:
        raise EvaluationError(f"--judge-key-env {key_env}: this environment variable is not set; put the key there")
    return address, key, model


async def ask_judge(
    folder: EvaluationFolder,
    settings: Mapping[str, Any],
    store: TrajectoryStore,
    suites: Sequence[Suite],
    judge: str,
    server: tuple[str, str, str],
    progress: Callable[[int, int, str], None],
    *,
    jobs: int,
) -> None:
    """Ask the questions that have no answer yet; questions that failed are asked again at the next start."""
    lines, submissions = JsonLines(folder.aspects), SubmissionStore(folder.submissions)
    known = {(row["id"], row["aspect"], row["reading"]) for row in _rows(folder, judge) if row["yes"] is not None}
    tasks: dict[str, Task] = {}
    for number in range(len(settings["policies"])):
        rows = stored_rows(settings, store, number, suites)
        tasks |= {row["id"]: task for row, _, task in rows if row["status"] != INFRA}
    wanted = [(id, aspect, n) for id in tasks for aspect in ASPECTS for n in range(READINGS)]
    todo = [each for each in wanted if each not in known]
    endpoint = HttpEndpoint(*server, sampling={"temperature": 1.0})  # readings have to be independent
    slots, done = asyncio.Semaphore(jobs), 0

    async def one(id: str, aspect: str, reading: int) -> None:
        nonlocal done
        async with slots:
            trajectory, stored = store.get(id), submissions.get(id)
            if trajectory is not None:
                submission = stored.submission if stored is not None else {}
                episode = MonitoredEpisode(
                    tasks[id], trajectory.events, trajectory.messages, trajectory.effort, submission
                )
                found = await read_aspect(endpoint, episode, aspect)
                lines.append({"id": id, "reading": reading, "judge": judge, **asdict(found)})
        done += 1
        progress(done, len(todo), "asking the judge")

    try:
        await asyncio.gather(*(one(*each) for each in todo))
    finally:
        await endpoint.close()


def episode_values(folder: EvaluationFolder, judge: str) -> dict[str, dict[str, float | None]]:
    """Return values by episode and axis; the value of a judge's aspect (``judge.intent``, ...) is the share of yes."""
    found = {id: dict(values) for id, values in read_axes(folder).items()}
    answers, _ = answers_of(_rows(folder, judge))
    for aspect, by_id in answers.items():
        for id, given in by_id.items():
            found.setdefault(id, {})[f"judge.{aspect}"] = sum(given) / len(given)
    return found


def agreements(folder: EvaluationFolder, judge: str) -> dict[str, dict[str, Any]]:
    """Return the agreement of the judge with itself and with the rules, by aspect."""
    answers, failed = answers_of(_rows(folder, judge))
    axes = read_axes(folder)
    aspects = [aspect for aspect in ASPECTS if aspect in answers or aspect in failed]
    return {
        aspect: asdict(agreement_of(aspect, answers.get(aspect, {}), failed.get(aspect, 0), axes)) for aspect in aspects
    }


def _rows(folder: EvaluationFolder, judge: str) -> list[dict[str, Any]]:
    """Return the last row of each question to this judge."""
    rows = [row for row in read_jsonl(folder.aspects) if row["judge"] == judge]
    return list({(row["id"], row["aspect"], row["reading"]): row for row in rows}.values())
