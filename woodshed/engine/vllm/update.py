"""Keeps a vLLM server on the newest weights of a chain. Its workers read the chain; this decides when they switch."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from woodshed.engine.protocol import EngineError, weights_problem

from .server import Server

if TYPE_CHECKING:
    from .client import VllmEngine

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05


class ChainUpdates:
    """Follows a weight chain. ``running``: True while weights change; ``swap_seconds``: total time of pauses."""

    def __init__(self, engine: VllmEngine, server: Server, chain: str | None, *, poll_seconds: float) -> None:
        self._engine, self._server, self._chain = engine, server, chain
        self._poll_seconds = poll_seconds
        self._lock = asyncio.Lock()
        self._watch: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None
        self.running = False
        self.problem: dict[str, Any] | None = None
        """Reason why newer weights cannot be loaded, and since when."""
        self.swaps, self.swap_seconds = 0, 0.0

    async def begin(self) -> None:
        """Start following the chain, after catching up with it; later calls do nothing."""
        if self._watch is not None:
            return
        if self._chain is None:
            if await self._server.paused():
                raise EngineError("vLLM is paused: POST /resume to it, or name the weight chain that it follows")
            return
        await self._step()
        self._watch = asyncio.ensure_future(self._run())

    async def follow(self, version: int, timeout: float) -> int:
        """Wait until the server has ``version``. Raises EngineError, also if it does not appear in time."""
        if self._engine.version < version and self._chain is None:
            raise EngineError(f"vLLM has version {self._engine.version} and follows no weight chain")
        try:
            async with asyncio.timeout(timeout):
                while self._engine.version < version:
                    await self._step()
                    if self._engine.version < version:
                        await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise EngineError(f"version {version} of the weights did not appear within {timeout:g} s") from None
        return self._engine.version

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._step()
            except Exception as error:  # of any kind: serving continues, and the next poll may succeed
                known, self.problem = self.problem, weights_problem(self.problem, error)
                if known is None or known["reason"] != self.problem["reason"]:
                    log.error("weights: %s", error, exc_info=not isinstance(error, EngineError))
            else:
                self.problem = None

    async def _step(self) -> None:
        """Load the currently newest version. An update that has begun is finished even if its caller is cancelled."""
        async with self._lock:
            if self._work is None or self._work.done():
                version = await self._decoded()
                if version is None:
                    return
                self._work = asyncio.ensure_future(self._change(version))
            await asyncio.shield(self._work)

    async def _decoded(self) -> int | None:
        """Wait until every worker has decoded the same version, and return it; None if the chain has nothing newer."""
        assert self._chain is not None
        least = 0
        while True:
            answers = await self._server.look(self._chain, self._engine.version, least)
            if problems := [answer["problem"] for answer in answers if answer["problem"]]:
                raise EngineError(f"{self._chain}: {problems[0]}")
            if not any(answer["busy"] for answer in answers):
                found = {answer["decoded"] for answer in answers}
                if len(found) == 1:
                    return found.pop()
                least = max(version for version in found if version is not None)
            await asyncio.sleep(LOOK_SECONDS)

    async def _change(self, version: int) -> None:
        began = time.monotonic()
        self.running = True
        self._engine.weights_changing()
        try:
            await self._server.update(version, drain=self._engine.settings.swap == "drain", timeout=600.0)
            await self._engine.weights_changed()
            self.swaps += 1
        finally:
            self.running = False
            self.swap_seconds += time.monotonic() - began
