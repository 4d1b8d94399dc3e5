"""The agents that a rollout can run: the protocol, the built-in loop and external programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import httpx

from woodshed.engine.settings import Truncation
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.key_limits import KeyLimits
from woodshed.gateway.rendering import Tools
from woodshed.gateway.segments_wire import Finished
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.episode import Episode, Moment
from woodshed.harness.errors import EndpointLost
from woodshed.harness.loop import registry_for, run_episode
from woodshed.harness.registry import harness_hash
from woodshed.harness.replay import Replay
from woodshed.harness.session import KnownTests
from woodshed.harness.settings import HarnessSettings, RetrySettings
from woodshed.record.task import Task
from woodshed.sandbox.protocol import BoxSpec, Egress, Sandbox

from .observed import at_limit, key_limits, observe
from .program import PORT, ProgramExit, run_program
from .rewards.tool_use import EDITS

ENGINE_CLOSED = "engine_closed"
"""Error code of a gateway whose engine is shutting down; no request of a program can cause it."""

ENDPOINT_RETRIES = RetrySettings(attempts=9)
"""Nine tries take 50 seconds: a gateway that was killed is restarted by then and continues its trajectories."""

Work = TypeVar("Work")


@dataclass(frozen=True)
class PolicyAccess:
    """Access of one rollout's agent to the policy, and sampling settings. ``key`` belongs to this rollout only.
    ``replay``: the beginning that a fork repeats before it asks the policy; only the built-in agent supports it.
    """

    base_url: str
    key: str
    model: str
    temperature: float
    seed: int | None
    truncation: Truncation
    replay: Replay | None = None


class Agent(Protocol[Work]):
    """Works on tasks in boxes. One agent serves all rollouts of a process, so it keeps no state of an episode.

    A rollout calls ``limits`` (to open its key), ``box`` (to create its box) and ``run`` in this order. Then it takes
    the submission, closes the box, gets the gateway's record, and calls ``episode``. ``Work`` is what ``run`` passes to
    ``episode``.
    """

    @property
    def harness_hash(self) -> str:
        """Hash of everything about the agent that a policy can notice; stored in every trajectory."""
        ...

    @property
    def needs_messages(self) -> bool:
        """True if ``episode`` reads the conversations that the gateway recorded (``Finished.messages``)."""
        ...

    def limits(self, *, temperature: float, seed: int | None, truncation: Truncation) -> KeyLimits | None:
        """Return the limits that the gateway enforces on the rollout's key; None if the agent enforces its own."""
        ...

    def box(self, spec: BoxSpec, base_url: str) -> BoxSpec:
        """Return the task's ``spec`` with additions that the agent needs. ``base_url``: address of the gateway."""
        ...

    async def run(self, task: Task, box: Sandbox, access: PolicyAccess) -> Work:
        """Work on the task until the agent ends or reaches a limit. Raises EndpointLost and SandboxError, and in a fork
        ReplayDiverged.

        What the policy or its code does to the box (BoxError) ends the episode and is never raised.
        """
        ...

    async def episode(self, work: Work, finished: Finished, admin: GatewayAdmin) -> Episode:
        """Describe what the agent did. Raises EndpointLost or ProgramFailed if that says nothing about the policy."""
        ...


class BuiltinAgent:
    """The agent of ``woodshed.harness``: a loop on the host that asks the gateway and runs its tools in the box.

    ``client`` is shared by all rollouts (``pooled_client``); without one, every rollout opens its own.
    """

    needs_messages = False

    def __init__(
        self,
        harness: HarnessSettings,
        client: httpx.AsyncClient | None = None,
        *,
        retry: RetrySettings = ENDPOINT_RETRIES,
    ) -> None:
        self.harness = harness
        self.client = client
        self.retry = retry
        self.harness_hash = harness_hash(harness)
        self.known = KnownTests()

    @property
    def tools(self) -> Tools:
        """Tool schemas in every request of the agent."""
        return registry_for(self.harness).schemas()

    def limits(self, *, temperature: float, seed: int | None, truncation: Truncation) -> KeyLimits | None:
        return None

    def box(self, spec: BoxSpec, base_url: str) -> BoxSpec:
        return spec

    async def run(self, task: Task, box: Sandbox, access: PolicyAccess) -> Episode:
        sampling: dict[str, float] = {"temperature": access.temperature, **access.truncation.changed()}
        if access.seed is not None:
            sampling["seed"] = access.seed
        endpoint = HttpEndpoint(
            access.base_url, access.key, access.model, self.client, sampling=sampling, retry=self.retry
        )
        try:
            return await run_episode(
                task.instruction,
                box,
                endpoint,
                self.harness,
                test_command=task.info.test_command,
                reuse=partial(self.known.run, task.digest) if self.harness.reuse_test_results else None,
                on_event=_Interruption(task.info.interruption).react if task.info.interruption else None,
                replay=access.replay,
            )
        finally:
            await endpoint.close()

    async def episode(self, work: Episode, finished: Finished, admin: GatewayAdmin) -> Episode:
        return work


class _Interruption:
    """The task's user, who says ``text`` once: after the first turn with an edit, or when the agent would stop."""

    def __init__(self, text: str) -> None:
        self.text: str | None = text
        self._edited = False

    def react(self, moment: Moment) -> str | None:
        if moment.kind == "result" and moment.call is not None and moment.result is not None:
            self._edited |= moment.call.name in EDITS and moment.result.error is None
        if moment.kind == "final" or (moment.kind == "turn" and self._edited):
            said, self.text = self.text, None
            return said
        return None


class ProgramFailed(Exception):
    """The external program does not work at all; the message contains its output."""


class ProgramAgent:
    """An unmodified external program, ``harness.program``, that runs in the box and reaches the gateway from there.

    ``layers``: the program's files for the box, lowest first (``woodshed.stages.programs.program_layers``). Raises
    ValueError if the settings name no program.
    """

    needs_messages = True

    def __init__(self, harness: HarnessSettings, layers: Sequence[Path] = ()) -> None:
        if harness.program is None:
            raise ValueError("harness.program is not set; give the command that starts the program")
        self.harness = harness
        self.program = harness.program
        self.layers = tuple(layers)
        self.harness_hash = harness_hash(harness, [layer.name for layer in self.layers])

    def limits(self, *, temperature: float, seed: int | None, truncation: Truncation) -> KeyLimits | None:
        return key_limits(self.harness.limits, temperature=temperature, seed=seed, truncation=truncation)

    def box(self, spec: BoxSpec, base_url: str) -> BoxSpec:
        """Add the program's files and a route to the gateway, besides what the recipe allows."""
        egress = replace(spec.egress or Egress(), routes={PORT: urlsplit(base_url).netloc})
        return replace(spec, layers=(*spec.layers, *self.layers), egress=egress)

    async def run(self, task: Task, box: Sandbox, access: PolicyAccess) -> ProgramExit:
        return await run_program(self.program, self.harness, task.instruction, box, key=access.key, model=access.model)

    async def episode(self, work: ProgramExit, finished: Finished, admin: GatewayAdmin) -> Episode:
        await self._check(work, finished, admin)
        return observe(finished, work, self.harness.limits)

    async def _check(self, work: ProgramExit, finished: Finished, admin: GatewayAdmin) -> None:
        """Raise EndpointLost or ProgramFailed if the program failed for a reason that is not the policy."""
        problem = work.problem()
        if problem:
            uptime = float((await admin.engine()).get("uptime_seconds", math.inf))
            if uptime < work.seconds:
                raise EndpointLost(f"the policy server was restarted while harness.program ran: {problem}")
            if ENGINE_CLOSED in finished.refusals:
                raise EndpointLost(f"the policy server was closing while harness.program ran: {problem}")
        if finished.usage or at_limit(finished):
            return
        refused = "".join(f"; the gateway answered {code}: {text}" for code, (_, text) in finished.refusals.items())
        message = f"harness.program had no reply from the policy: {problem or 'exit code 0'}{refused}"
        if any(status == 429 or status >= 500 for status, _ in finished.refusals.values()):
            raise EndpointLost(message)
        raise ProgramFailed(message)
