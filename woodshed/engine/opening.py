"""Opens a policy's directory as an engine in this process, and keeps that engine on the newest weights of a chain."""

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
from .lent import LentCores
from .local import LocalEngine
from .protocol import EngineError, weights_problem
from .settings import ServerSettings

log = logging.getLogger(__name__)


class ChainWatch:
    """Keeps an engine on the newest version of a weight chain, polled every ``poll_seconds`` and on demand. Versions
    are decoded while the engine runs."""

    def __init__(self, engine: LocalEngine, chain: str | Store, *, poll_seconds: float, timeout_seconds: float) -> None:
        self.engine = engine
        self.follower = Follower(chain)
        self._poll_seconds = poll_seconds
        self._timeout = timeout_seconds
        self._lock = asyncio.Lock()
        self._work: asyncio.Task[None] | None = None

    async def follow(self, version: int) -> int:
        """Wait until the engine serves at least ``version``, and return the version served. Raises TimeoutError if it
        does not appear in time, EngineError or ValueError if it cannot be used."""
        async with asyncio.timeout(self._timeout):
            while self.engine.version < version:
                try:
                    await self._step()
                except OSError as error:  # of the chain's store: retried until the timeout
                    log.warning("weights: %s", error)
                if self.engine.version < version:
                    await asyncio.sleep(min(0.05, self._poll_seconds))
        return self.engine.version

    async def run(self) -> None:
        """Follow the chain until cancelled. A damaged chain is reported and polled again; serving continues."""
        while True:
            await self.catch_up()
            await asyncio.sleep(self._poll_seconds)

    async def catch_up(self) -> None:
        """Load the currently newest version; a failure is logged and set as the engine's ``weights_problem``."""
        try:
            await self._step()
        except Exception as error:  # of any kind: serving continues, and the next poll may succeed
            known = self.engine.weights_problem
            problem = self.engine.weights_problem = weights_problem(known, error)
            if known is None or known["reason"] != problem["reason"]:
                expected = isinstance(error, (EngineError, OSError, ValueError))
                log.error("weights: %s", problem["reason"], exc_info=not expected)
        else:
            self.engine.weights_problem = None

    async def _step(self) -> None:
        """Load the currently newest version. A step that has begun is finished even if its caller is cancelled."""
        async with self._lock:
            if self._work is not None and not self._work.done():
                await asyncio.wait((self._work,))
            self._work = asyncio.create_task(self._advance())
            await asyncio.shield(self._work)

    async def _advance(self) -> None:
        """Decode new versions, then load the newest decoded one if the engine lacks it, even if an earlier step decoded
        it."""
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
            elif version is not None and version < self.engine.version:
                problem = problem or ChainError(
                    f"version {version} is the newest, but the policy is of version {self.engine.version}; serve it "
                    "without this chain, or from a policy that the chain began with"
                )
            if problem is not None:
                raise problem
        except ChainError as error:
            raise EngineError(f"{self.follower.store.url}: {error}") from error


@dataclass(frozen=True)
class Opened:
    """An open policy and its engine; ``chain`` is None if the server follows no weight chain."""

    policy: Policy
    engine: LocalEngine
    chain: ChainWatch | None


async def open_engine(settings: ServerSettings, stack: contextlib.AsyncExitStack, *, gpu: int = 0) -> Opened:
    """Load the policy, catch up with its weight chain and follow it; ``stack`` closes all of it. Raises ValueError,
    FileNotFoundError."""
    if settings.policy is None:
        raise ValueError("policy is not set; name the policy's directory")
    device = resolve(settings.device)
    if device.type == "cuda":
        device = torch.device("cuda", gpu % torch.cuda.device_count())
    policy = load_policy(settings.policy, device=device, format=settings.format)
    grammars = Grammars.of(policy.tokenizer)
    grammars.prepare()
    cores, own = None, settings.engine.threads or torch.get_num_threads()
    if device.type == "cpu" and settings.lender is not None and settings.lent_threads > own:
        cores = LentCores(settings.lender, own, settings.lent_threads)
    engine = LocalEngine(
        policy.decoder,
        settings=settings.engine,
        device=device,
        version=policy.version,
        mtp=policy.mtp,
        grammars=grammars,
        cores=cores,
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
    await chain.catch_up()  # a restarted server must not sample from the initial weights
    watcher = asyncio.create_task(chain.run())
    stack.callback(watcher.cancel)
    return Opened(policy, engine, chain)
