"""Runs one episode from task to graded Trajectory: the same function for training, evaluation and live runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from woodshed.engine.settings import Truncation
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.errors import RESUME_DIVERGED
from woodshed.grading.crossing import Submission
from woodshed.grading.settings import GradingSettings, MonitorSettings
from woodshed.grading.verify import GradeCache, grade, submission_from
from woodshed.harness.replay import ReplayDiverged
from woodshed.monitors import MonitoredEpisode, watch
from woodshed.monitors.judge import Judge
from woodshed.record.fault import Fault
from woodshed.record.task import Task, TaskError
from woodshed.record.trajectory import Source, Trajectory
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Backend, Egress, Limits
from woodshed.sandbox.services import create_box
from woodshed.sandbox.taskbox import agent_box_spec

from .agent import Agent, BuiltinAgent, PolicyAccess, ProgramFailed
from .failures import AT_ONCE, FAULT, INFRA, RESUMED, RETRIED, source_of
from .forking import FORK_OF, ForkError, ForkPoint
from .observed import last_reply_last, summary_tokens
from .rewards import RewardError, RewardFunction, raw_outcome

log = logging.getLogger(__name__)


@dataclass
class Arena:
    """Resources and settings that all rollouts of a process share."""

    backend: Backend
    layers: LayerStore
    admin: GatewayAdmin
    base_url: str
    """Address of the gateway."""
    agent: Agent[Any]
    policy: str
    """Name of the policy; agents use it as the model's name, trajectories store it."""
    temperature: float = 1.0
    truncation: Truncation = field(default_factory=Truncation)
    attempts: int = 3
    """Maximum number of tries of one rollout."""
    max_infra_rate: float = 0.5
    """Share of the last ``infra_window`` episodes with infrastructure errors above which a run ends."""
    infra_window: int = 32
    patience: float = 180.0
    """Seconds to wait for a gateway that is down before the next try."""
    limits: Limits = field(default_factory=Limits)
    egress: Egress | None = None
    reward: RewardFunction = raw_outcome
    monitors: MonitorSettings = field(default_factory=MonitorSettings)
    judge: Judge | None = None
    read: Callable[[MonitoredEpisode, Trajectory], Awaitable[Trajectory]] | None = None
    """Adds to a finished episode what a model that reads it says (``rl.reader``), before its reward is computed."""
    grades: GradeCache = field(default_factory=GradeCache)
    grading: GradingSettings = field(default_factory=GradingSettings)
    keep_submission: Callable[[str, Task, Submission], None] | None = None
    """Called with (id, task, submission) of each try before grading, to keep the submission for grading it again."""

    @property
    def harness_hash(self) -> str:
        return self.agent.harness_hash


async def rollout(
    arena: Arena,
    task: Task,
    *,
    id: str,
    group: str,
    source: Source,
    labels: Mapping[str, str] | None = None,
    seed: int | None = None,
    fork: ForkPoint | None = None,
    resume: bool = False,
) -> Trajectory:
    """Run one episode, grade it and return the trajectory. Nothing that the policy does raises an exception.

    Failures of the host or the gateway are retried. After ``arena.attempts`` tries the trajectory gets the status
    ``infra_error`` and the source of the failure as label ``fault``; if the task cannot be graded, already after the
    first try. Code in a box cannot cause SandboxError or EndpointLost; what it does to its own box (BoxError) ends the
    episode, which is then graded. An exception that comes from neither a box nor the gateway counts as a failure of the
    host. A restarted gateway costs one try, however long the restart takes (up to ``arena.patience`` seconds).
    With ``fork`` the episode continues another one from that point; if the new box does not reproduce the beginning,
    the trajectory gets the status ``infra_error`` and the fault ``replay``.
    With ``resume`` the episode of an earlier process continues, if the gateway still has it open: it runs again in a
    new box, and its replies come from the gateway's record as far as that goes. If it diverges from the record, it is
    discarded and run from the beginning.
    Raises ProgramFailed if the recipe's program does not work at all, TaskError, and RewardError.
    """
    labels = dict(labels or {})
    if fork is not None:
        labels[FORK_OF] = fork.parent.id
    started, error, origin = time.time(), "", "host"
    if resume and (key := await _resumable(arena, id)) is not None:
        try:
            trajectory = await _attempt(
                arena, task, id=id, group=group, source=source, labels=labels | {RESUMED: "1"}, seed=seed, key=key
            )
            return replace(trajectory, started=started)
        except (TaskError, RewardError):
            raise
        except Exception as failure:  # whatever it was, the episode is run from the beginning now
            log.warning("%s could not be resumed: %s: %s", id, type(failure).__name__, failure)
    for attempt in range(1, arena.attempts + 1):
        try:
            trajectory = await _attempt(
                arena, task, id=id, group=group, source=source, labels=labels, seed=seed, fork=fork
            )
        except (TaskError, RewardError):
            raise
        except Exception as failure:
            if isinstance(failure, ProgramFailed) and attempt == arena.attempts:
                raise
            error, origin = f"{type(failure).__name__}: {failure}", source_of(failure)
            known = isinstance(failure, (Fault, ProgramFailed, httpx.HTTPError, OSError))
            log.warning("%s: attempt %d of %d: %s", id, attempt, arena.attempts, error, exc_info=not known)
            if origin in AT_ONCE:  # grading, for one, has already tried several draws of inputs
                break
            await asyncio.sleep(0.2 * 2**attempt)  # a process that died is being restarted
            await arena.admin.wait_until_up(arena.patience)
            continue
        retried = {RETRIED: origin} if attempt > 1 else {}
        return replace(trajectory, attempts=attempt, started=started, labels={**trajectory.labels, **retried})
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
        labels={**labels, FAULT: origin},
        attempts=attempt,
        started=started,
        ended=time.time(),
        error=error,
        fork=None if fork is None else fork.fork,
    )


async def _resumable(arena: Arena, id: str) -> str | None:
    """Return a new key for the episode, if it is open at the gateway; None if it is not, or the gateway is down."""
    try:
        return await arena.admin.resume(id)
    except (GatewayError, httpx.HTTPError) as error:
        log.warning("%s could not be resumed: %s: %s", id, type(error).__name__, error)
        return None


async def _attempt(
    arena: Arena,
    task: Task,
    *,
    id: str,
    group: str,
    source: Source,
    labels: Mapping[str, str],
    seed: int | None,
    fork: ForkPoint | None = None,
    key: str | None = None,
) -> Trajectory:
    """Make one try of a rollout. ``key``: key of an open trajectory to continue. Raises what ``rollout`` retries."""
    agent = arena.agent
    limits = agent.limits(temperature=arena.temperature, seed=seed, truncation=arena.truncation)
    beginning = None
    if fork is not None:
        if not isinstance(agent, BuiltinAgent):
            raise ForkError(f"{type(agent).__name__} cannot continue a rollout; only the built-in agent can")
        beginning = fork.beginning(agent.tools)
    resumed = key is not None
    if key is None:
        key = await arena.admin.open(
            id, task=task.name, group=group, source=source, labels=labels, limits=limits, beginning=beginning
        )
    access = PolicyAccess(
        base_url=arena.base_url,
        key=key,
        model=arena.policy,
        temperature=arena.temperature,
        seed=seed,
        truncation=arena.truncation,
        replay=None if fork is None else fork.replay,
    )
    spec = agent_box_spec(task, arena.layers, limits=arena.limits, egress=arena.egress)
    box = await create_box(arena.backend, agent.box(spec, arena.base_url), task.info.start)
    try:
        work = await agent.run(task, box, access)
        submission = await submission_from(box, task, arena.grading)
        if arena.keep_submission is not None:
            arena.keep_submission(id, task, submission)
    finally:
        await box.close()
    finished = last_reply_last(await arena.admin.finish(id, messages=agent.needs_messages))
    if resumed and (finished.repeating or RESUME_DIVERGED in finished.refusals):
        raise ReplayDiverged("the resumed episode goes another way than before")
    episode = await agent.episode(work, finished, arena.admin)
    # The final state counts whether or not the agent said that it was done (docs/measured.md).
    outcome = await grade(task, submission, arena.backend, arena.layers, cache=arena.grades, settings=arena.grading)
    seen = MonitoredEpisode(
        task=task,
        events=episode.events,
        messages=episode.messages,
        effort=episode.effort,
        submission=submission,
        requests=box.stats().get("egress", {}),
    )
    repeated = 0 if fork is None else fork.fork.replies  # replies that the gateway did not sample for this trajectory
    summaries = [reply - repeated for reply in episode.summary_replies if reply >= repeated and finished.usage]
    trajectory = Trajectory(
        id=id,
        task=task.name,
        group=group,
        source=source,
        harness_hash=arena.harness_hash,
        policy=arena.policy,
        status=episode.status,
        segments=finished.segments if fork is None else fork.joined(finished.segments),
        messages=episode.messages,
        events=episode.events,
        outcome=outcome,
        effort=episode.effort,
        changed={path: after for path, _, after in seen.changed()},
        summaries=summary_tokens(finished, summaries),
        labels=dict(labels),
        prefix_breaks=finished.prefix_breaks,
        ignored=finished.ignored,
        ended=time.time(),
        error=episode.error,
        replies=episode.replies,
        fork=None if fork is None else fork.fork,
    )
    if arena.read is not None:
        trajectory = await arena.read(seen, trajectory)
    # in threads: terms may run programs (``style``), and monitors read large files
    rewards = await asyncio.to_thread(arena.reward, task, trajectory, outcome)
    trajectory = replace(trajectory, rewards=rewards)
    ruling = await arena.judge.rule(id, seen) if arena.judge is not None else None
    training = source == "train"
    return await asyncio.to_thread(watch, trajectory, seen, arena.monitors, training=training, ruling=ruling)
