"""One episode from task to graded Trajectory: the same function for training, evaluation and live runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx

from ..gateway.client import GatewayAdmin, GatewayError
from ..grading.monitors import Episode, watch
from ..grading.settings import MonitorSettings
from ..grading.verify import GradeCache, grade, submission_from
from ..harness.endpoint import HttpEndpoint
from ..harness.errors import EndpointLost
from ..harness.loop import run_episode
from ..harness.registry import harness_hash
from ..harness.settings import HarnessSettings
from ..record.task import Task
from ..record.trajectory import Effort, Outcome, Source, ToolEvent, Trajectory
from ..sandbox.layers import LayerStore
from ..sandbox.protocol import Backend, Egress, Limits, SandboxError
from ..sandbox.taskbox import box_spec

RewardFunction = Callable[[Outcome, Effort], dict[str, float]]


def raw_outcome(outcome: Outcome, effort: Effort) -> dict[str, float]:
    """The reward of evaluation: resolved or not, nothing shaped."""
    return {"outcome": 1.0 if outcome.resolved else 0.0}


@dataclass
class Arena:
    """What every rollout of a process shares."""

    backend: Backend
    layers: LayerStore
    admin: GatewayAdmin
    client: httpx.AsyncClient
    base_url: str
    harness: HarnessSettings
    policy: str
    temperature: float = 1.0
    attempts: int = 3
    patience: float = 180.0
    limits: Limits = field(default_factory=Limits)
    egress: Egress | None = None
    reward: RewardFunction = raw_outcome
    monitors: MonitorSettings = field(default_factory=MonitorSettings)
    grades: GradeCache = field(default_factory=GradeCache)

    def __post_init__(self) -> None:
        self.harness_hash = harness_hash(self.harness)


async def rollout(
    arena: Arena,
    task: Task,
    *,
    id: str,
    group: str,
    source: Source,
    labels: Mapping[str, str] | None = None,
    seed: int | None = None,
) -> Trajectory:
    """Run, grade and describe one episode. Never raises for what the policy does.

    Only failures of the sandbox or the endpoint are tried again, and after ``arena.attempts`` tries become the status
    ``infra_error``: nothing inside a box can raise SandboxError or EndpointLost. A server that is being restarted costs
    one try, however long that takes (up to ``arena.patience`` seconds).
    """
    started, error = time.time(), ""
    for attempt in range(1, arena.attempts + 1):
        try:
            trajectory = await _attempt(arena, task, id, group, source, dict(labels or {}), seed)
        except (SandboxError, EndpointLost, GatewayError, httpx.HTTPError) as failure:
            error = f"{type(failure).__name__}: {failure}"
            await asyncio.sleep(0.2 * 2**attempt)  # whatever died is being started again
            await arena.admin.wait_until_up(arena.patience)
            continue
        trajectory.attempts, trajectory.started = attempt, started
        return trajectory
    return Trajectory(
        id=id, task=task.name, group=group, source=source, harness_hash=arena.harness_hash, policy=arena.policy,
        status="infra_error", labels=dict(labels or {}), attempts=arena.attempts, started=started, ended=time.time(),
        error=error,
    )  # fmt: skip


async def _attempt(
    arena: Arena, task: Task, id: str, group: str, source: Source, labels: dict[str, str], seed: int | None
) -> Trajectory:
    key = await arena.admin.open(id, task=task.name, group=group, source=source, labels=labels)
    box = await arena.backend.create(box_spec(task, arena.layers, limits=arena.limits, egress=arena.egress))
    try:
        sampling = {"temperature": arena.temperature, **({} if seed is None else {"seed": seed})}
        endpoint = HttpEndpoint(arena.base_url, key, arena.policy, arena.client, sampling=sampling)
        episode = await run_episode(task.instruction, box, endpoint, arena.harness, test_command=task.info.test_command)
        submission = await submission_from(box, task)
    finally:
        await box.close()
    finished = await arena.admin.finish(id)
    # The final state counts whether or not the agent said that it was done (docs/measured.md).
    outcome = await grade(task, submission, arena.backend, arena.layers, cache=arena.grades)
    events: list[ToolEvent] = episode.events
    trajectory = Trajectory(
        id=id, task=task.name, group=group, source=source, harness_hash=arena.harness_hash, policy=arena.policy,
        status=episode.status, segments=finished.segments, messages=episode.messages, events=events, outcome=outcome,
        effort=episode.effort, rewards=arena.reward(outcome, episode.effort), labels=labels,
        prefix_breaks=finished.prefix_breaks, ended=time.time(), error=episode.error,
    )  # fmt: skip
    seen = Episode(task, events, episode.messages, episode.effort, submission, box.stats().get("egress", {}))
    watch(trajectory, seen, arena.monitors, training=source == "train")
    return trajectory
