"""One episode from task to graded Trajectory: the same function for training, evaluation and live runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.segments_wire import Finished
from woodshed.grading.settings import GradingSettings, MonitorSettings
from woodshed.grading.verify import GradeCache, grade, submission_from
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.episode import Episode
from woodshed.harness.errors import EndpointLost
from woodshed.harness.loop import run_episode
from woodshed.harness.registry import harness_hash
from woodshed.harness.settings import HarnessSettings, RetrySettings
from woodshed.monitors import MonitoredEpisode, watch
from woodshed.monitors.judge import Judge
from woodshed.record.fault import Fault
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Source, ToolEvent, Trajectory
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, BoxSpec, Egress, Limits, Sandbox
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec

from .failures import FAULT, INFRA, RETRIED, source_of
from .observed import at_limit, observe, terms_of
from .program import PORT, Ended, run_program
from .rewards import RewardError, RewardFunction, raw_outcome

log = logging.getLogger(__name__)

CLOSED = "engine_closed"
"""Refusal of a gateway whose engine is going; nothing that a program asks for brings it about."""


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
    max_failures: int = 16
    """Episodes in a row that failures of the host or the endpoint may end, before a run says so and ends."""
    retry: RetrySettings = field(default_factory=lambda: RetrySettings(attempts=9))
    """For 50 seconds: a server that was killed comes back, and goes on with its trajectories."""
    patience: float = 180.0
    limits: Limits = field(default_factory=Limits)
    egress: Egress | None = None
    reward: RewardFunction = raw_outcome
    monitors: MonitorSettings = field(default_factory=MonitorSettings)
    judge: Judge | None = None
    grades: GradeCache = field(default_factory=GradeCache)
    grading: GradingSettings = field(default_factory=GradingSettings)

    program_layers: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        self.harness_hash = harness_hash(self.harness, [layer.name for layer in self.program_layers])

    def box(self, task: Task) -> BoxSpec:
        """The box of a rollout. A program in it reaches the gateway and what the recipe allows."""
        spec = agent_box_spec(task, self.layers, limits=self.limits, egress=self.egress)
        if self.harness.program is None:
            return spec
        egress = replace(self.egress or Egress(), routes={PORT: urlsplit(self.base_url).netloc})
        return replace(spec, layers=(*spec.layers, *self.program_layers), egress=egress)


class ProgramFailed(Exception):
    """The recipe's program does not run; the message says what it printed."""


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

    Failures of the host or the endpoint are tried again, and after ``arena.attempts`` tries become the status
    ``infra_error``, with the source as label ``fault``; where the task cannot be graded, at once. Nothing inside a
    box can raise SandboxError or EndpointLost, and what a box did to itself (BoxError) ends its episode and is graded.
    An error that no box and no endpoint gave is this machine's. A restarted server costs one try, however long that
    takes (up to ``arena.patience`` seconds). Raises ProgramFailed where the recipe's program does not work at all,
    TaskError, and RewardError.
    """
    started, error, origin = time.time(), "", "host"
    for attempt in range(1, arena.attempts + 1):
        try:
            trajectory = await _attempt(arena, task, id, group, source, dict(labels or {}), seed)
        except (TaskError, RewardError):
            raise
        except Exception as failure:
            if isinstance(failure, ProgramFailed) and attempt == arena.attempts:
                raise
            error, origin = f"{type(failure).__name__}: {failure}", source_of(failure)
            known = isinstance(failure, (Fault, ProgramFailed, httpx.HTTPError, OSError))
            log.warning("%s: attempt %d of %d: %s", id, attempt, arena.attempts, error, exc_info=not known)
            if origin == "task":  # that was tried again already, on several draws of inputs
                break
            await asyncio.sleep(0.2 * 2**attempt)  # whatever died is being started again
            await arena.admin.wait_until_up(arena.patience)
            continue
        trajectory.attempts, trajectory.started = attempt, started
        if attempt > 1:
            trajectory.labels[RETRIED] = origin
        return trajectory
    with contextlib.suppress(GatewayError, httpx.HTTPError):
        await arena.admin.delete(id)
    return Trajectory(
        id=id,
        task=task.name,
        group=group,
        source=source,
        harness_hash=arena.harness_hash,
        policy=arena.policy,
        status=INFRA,
        labels={**(labels or {}), FAULT: origin},
        attempts=attempt,
        started=started,
        ended=time.time(),
        error=error,
    )


async def _drive(arena: Arena, task: Task, box: Sandbox, key: str, seed: int | None) -> Episode:
    """Our own agent."""
    sampling = {"temperature": arena.temperature, **({} if seed is None else {"seed": seed})}
    endpoint = HttpEndpoint(arena.base_url, key, arena.policy, arena.client, sampling=sampling, retry=arena.retry)
    return await run_episode(task.instruction, box, endpoint, arena.harness, test_command=task.info.test_command)


async def _trust(arena: Arena, finished: Finished, ended: Ended) -> None:
    """Raise where a program failed for no reason of the policy's: what it left says nothing about the policy then."""
    if ended.why() and float((await arena.admin.engine()).get("uptime_seconds", math.inf)) < ended.seconds:
        raise EndpointLost(f"the policy server was restarted while harness.program ran: {ended.why()}")
    if ended.why() and CLOSED in finished.refusals:
        raise EndpointLost(f"the policy server was closing while harness.program ran: {ended.why()}")
    if finished.usage or at_limit(finished):
        return
    refused = "".join(f"; the gateway answered {code}: {text}" for code, (_, text) in finished.refusals.items())
    what = f"harness.program had no reply from the policy: {ended.why() or 'exit code 0'}{refused}"
    if any(status == 429 or status >= 500 for status, _ in finished.refusals.values()):
        raise EndpointLost(what)
    raise ProgramFailed(what)


async def _attempt(
    arena: Arena, task: Task, id: str, group: str, source: Source, labels: dict[str, str], seed: int | None
) -> Trajectory:
    program = arena.harness.program
    limits = terms_of(arena.harness.limits, temperature=arena.temperature, seed=seed) if program is not None else None
    key = await arena.admin.open(id, task=task.name, group=group, source=source, labels=labels, limits=limits)
    box = await create_box(arena.backend, arena.box(task), task.info.start)
    try:
        if program is None:
            episode = await _drive(arena, task, box, key, seed)
        else:
            ended = await run_program(program, arena.harness, task.instruction, box, key=key, model=arena.policy)
        submission = await submission_from(box, task, arena.grading)
    finally:
        await box.close()
    finished = await arena.admin.finish(id, messages=program is not None)
    if program is not None:
        await _trust(arena, finished, ended)
        episode = observe(finished, ended, arena.harness.limits)
    # The final state counts whether or not the agent said that it was done (docs/measured.md).
    outcome = await grade(task, submission, arena.backend, arena.layers, cache=arena.grades, settings=arena.grading)
    events: list[ToolEvent] = episode.events
    trajectory = Trajectory(
        id=id,
        task=task.name,
        group=group,
        source=source,
        harness_hash=arena.harness_hash,
        policy=arena.policy,
        status=episode.status,
        segments=finished.segments,
        messages=episode.messages,
        events=events,
        outcome=outcome,
        effort=episode.effort,
        labels=labels,
        prefix_breaks=finished.prefix_breaks,
        ignored=finished.ignored,
        ended=time.time(),
        error=episode.error,
    )
    trajectory = replace(trajectory, rewards=arena.reward(task, trajectory, outcome))
    seen = MonitoredEpisode(task, events, episode.messages, episode.effort, submission, box.stats().get("egress", {}))
    ruling = await arena.judge.rule(id, seen) if arena.judge is not None else None
    watch(trajectory, seen, arena.monitors, training=source == "train", ruling=ruling)
    return trajectory
