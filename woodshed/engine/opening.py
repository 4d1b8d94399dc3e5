"""A policy on disk becomes an engine in this process that follows its weight chain.

Keeps an engine on the newest weights of a chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import torch

from woodshed.policy.device import resolve
from woodshed.policy.hf import Policy, load_policy
from woodshed.weights.errors import ChainError
from woodshed.weights.follow import Follower
from woodshed.weights.image import assemble
from woodshed.weights.store import Store

from .grammar import Grammars
from .local import LocalEngine
from .protocol import EngineError, weights_problem
from .settings import ServerSettings

log = logging.getLogger(__name__)


class ChainWatch:
    """Looks at the chain every ``poll_seconds`` and whenever asked. Versions are decoded beside the running engine."""

    def __init__(self, engine: LocalEngine, chain: str | Store, *, poll_seconds: float, timeout_seconds: float) -> None:
        self.engine = engine
        self.follower = Follower(chain)
        self._poll_seconds = poll_seconds
        self._timeout = timeout_seconds
        self._lock = asyncio.Lock()
        self._work: asyncio.Task[None] | None = None

    async def follow(self, version: int) -> int:
        """Until the engine serves at least ``version``. Raises TimeoutError where that does not appear in time,
        EngineError or ValueError where it cannot be used."""
        async with asyncio.timeout(self._timeout):
            while self.engine.version < version:
                try:
                    await self._step()
                except OSError as error:  # of the chain's store: tried again until it is too late
                    log.warning("weights: %s", error)
                if self.engine.version < version:
                    await asyncio.sleep(min(0.05, self._poll_seconds))
        return self.engine.version

    async def run(self) -> None:
        """Follow until cancelled. A damaged chain is reported and looked at again; serving goes on."""
        while True:
            await self.catch_up()
            await asyncio.sleep(self._poll_seconds)

    async def catch_up(self) -> None:
        """To the newest version there is now."""
        try:
            await self._step()
        except Exception as error:  # whatever it is: serving goes on, and the next look may succeed
            known = self.engine.weights_problem
            problem = self.engine.weights_problem = weights_problem(known, error)
            if known is None or known["reason"] != problem["reason"]:
                expected = isinstance(error, (EngineError, OSError, ValueError))
                log.error("weights: %s", problem["reason"], exc_info=not expected)
        else:
            self.engine.weights_problem = None

    async def _step(self) -> None:
        """To the newest version there is now. A step that has begun is finished, whoever is cancelled."""
        async with self._lock:
            if self._work is not None and not self._work.done():
                await asyncio.wait((self._work,))
            self._work = asyncio.create_task(self._advance())
            await asyncio.shield(self._work)

    async def _advance(self) -> None:
        """Decode what is new, and give the engine what it lacks of what is decoded, also by an earlier step."""
        problem: Exception | None = None
        try:
            await asyncio.to_thread(self.follower.advance)
        except (ChainError, OSError) as error:
            problem = error
        version, image = self.follower.version, self.follower.image
        try:
            if version is not None and image is not None and version > self.engine.version:
                state = await asyncio.to_thread(assemble, image)
                await self.engine.update_weights(version, state, kv=self.engine.settings.swap)
            if problem is not None:
                raise problem
        except ChainError as error:
            raise EngineError(f"{self.follower.store.url}: {error}") from error


@dataclass(frozen=True)
class Opened:
    """``chain`` is None where the server follows no weight chain."""

    policy: Policy
    engine: LocalEngine
    chain: ChainWatch | None


async def open_engine(settings: ServerSettings, stack: contextlib.AsyncExitStack, *, gpu: int = 0) -> Opened:
    """Load, catch up with the chain, follow it from then on; ``stack`` ends all of it. Raises ValueError,
    FileNotFoundError."""
    if settings.policy is None:
        raise ValueError("policy is not set; name the policy's directory")
    device = resolve(settings.device)
    if device.type == "cuda":
        device = torch.device("cuda", gpu % torch.cuda.device_count())
    policy = load_policy(settings.policy, device=device, format=settings.format)
    grammars = Grammars.of(policy.tokenizer)
    grammars.prepare()
    engine = LocalEngine(
        policy.decoder,
        settings=settings.engine,
        device=device,
        version=policy.version,
        mtp=policy.mtp,
        grammars=grammars,
    )
    stack.push_async_callback(engine.close)
    if settings.weights is None:
        return Opened(policy, engine, None)
    chain = ChainWatch(
        engine,
        settings.weights,
        poll_seconds=settings.weights_poll_seconds,
        timeout_seconds=settings.weights_timeout_seconds,
    )
    await chain.catch_up()  # a server that was restarted must not sample from the weights it began with
    watcher = asyncio.create_task(chain.run())
    stack.callback(watcher.cancel)
    return Opened(policy, engine, chain)
