"""Keeps an engine on the newest weights of a chain."""

from __future__ import annotations

import asyncio
import logging

from woodshed.engine.errors import EngineError
from woodshed.engine.local import LocalEngine
from woodshed.weights.errors import ChainError
from woodshed.weights.follow import Follower

log = logging.getLogger(__name__)


class ChainWatch:
    """Looks at the chain every ``poll_seconds`` and whenever asked. Versions are decoded beside the running engine."""

    def __init__(self, engine: LocalEngine, chain: str, *, poll_seconds: float, timeout_seconds: float) -> None:
        self.engine = engine
        self.follower = Follower(chain)
        self._poll_seconds = poll_seconds
        self._timeout = timeout_seconds
        self._lock = asyncio.Lock()

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
        except (EngineError, OSError, ValueError) as error:
            log.error("weights: %s", error)

    async def _step(self) -> None:
        async with self._lock:
            try:
                found = await asyncio.to_thread(self.follower.poll)
            except ChainError as error:
                raise EngineError(f"{self.follower.store.url}: {error}") from error
            if found is not None and found[0] > self.engine.version:
                await self.engine.update_weights(*found, kv=self.engine.settings.swap)
