"""Routes requests over several engines as if they were one: prefix affinity, load, failover, weights.

Invariants: a token that reached the router is never sampled again. An engine serves only if its weights are at least as
new as every version that the router has confirmed to a caller (``follow``) or that an interrupted request has used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.engine.protocol import (
    Completion,
    ContextLengthExceeded,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineUnfit,
    OnToken,
    Sampling,
)
from woodshed.engine.settings import RoutingSettings

from .partial import Partial
from .replica import COUNTERS, Peer, Placement, Replica

log = logging.getLogger(__name__)

_NOW = ("running", "waiting", "sessions", "cache_tokens", "cache_bytes")


class Router:
    """Implements ``woodshed.engine.protocol.Engine`` over ``engines``, which it takes ownership of; belongs to one
    event loop. ``vocabulary`` is the size that all engines must have; None accepts any."""

    def __init__(
        self, engines: Sequence[Peer], settings: RoutingSettings | None = None, *, vocabulary: int | None = None
    ) -> None:
        if not engines:
            raise ValueError("engines: a router needs at least one")
        if len({engine.url for engine in engines}) < len(engines):
            raise ValueError("engines: the same address is named twice")
        self.settings = settings or RoutingSettings()
        self.replicas = [Replica(engine) for engine in engines]
        self._vocabulary = vocabulary
        self._placement = Placement(self.settings.spread)
        self._min_version = 0
        self._changed = asyncio.Event()
        self._closed = False
        self._started = time.perf_counter()
        self._moved = self._kept = 0
        self._pollers = [asyncio.create_task(self._poll(replica)) for replica in self.replicas]

    @property
    def version(self) -> int:
        """Newest version that every serving engine has."""
        return min((r.engine.version for r in self._serving()), default=self._min_version)

    @property
    def context(self) -> int | None:
        """Maximum sequence length over all serving engines; None while it is unknown."""
        return max((r.context for r in self._serving() if r.context is not None), default=None)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, *, session: str | None = None, on_token: OnToken | None = None
    ) -> Completion:
        """Sample a completion, see ``Engine.generate``. If an engine dies or stops answering, another one continues
        after its tokens.

        Raises EngineClosed if no engine serves within ``patience_seconds``, EngineBusy if all engines refuse.
        """
        partial = Partial(tokens, sampling, on_token)
        failed: dict[Replica, EngineError] = {}
        moves = 0
        while True:
            replica = await self._pick(session, failed)
            try:
                done = await self._attempt(replica, partial, session, live=on_token is not None)
                return partial.whole(done)
            except ContextLengthExceeded:
                if partial.tokens:  # the previous engine filled the context with its last token
                    return partial.cut("length")
                raise
            except EngineClosed as error:
                moves += 1
                log.warning("a request moves to another engine: %s", error)
                replica.lost += 1
                self._mark_down(replica, error)
                if moves > self.settings.moves:
                    raise
                self._moved += 1
                self._kept += len(partial.tokens)
                self._require_version(max(partial.versions, default=0))
            except EngineError as error:  # busy or failed: another engine may succeed
                if not isinstance(error, EngineBusy) and not all(isinstance(e, EngineBusy) for e in failed.values()):
                    raise
                failed[replica] = error
            if reason := partial.ended:
                return partial.cut(reason)

    async def follow(self, version: int) -> int:
        """Wait until an engine has at least ``version`` of the weight chain; from then on engines with older weights do
        not serve.

        Raises EngineError if no engine can load the version.
        """
        deadline = time.monotonic() + self.settings.patience_seconds
        while True:
            await self._pick(None, {})
            try:
                await self._follow(version)
                return self.version
            except EngineClosed:
                if time.monotonic() > deadline:
                    raise

    def grammars_refused(self) -> str | None:
        """Return the reason why one of the engines refuses ``Sampling.grammar``, None if all of them accept one."""
        refused = (replica.engine.grammars_refused() for replica in self.replicas)
        return next((why for why in refused if why is not None), None)

    def kept_sets_refused(self) -> str | None:
        """Return the reason why one of the engines does not report kept sets, None if all of them do."""
        refused = (replica.engine.kept_sets_refused() for replica in self.replicas)
        return next((why for why in refused if why is not None), None)

    def release(self, session: str) -> None:
        """Forget a session; its unfinished requests end with stop reason ``cancelled``."""
        self._placement.release(session)

    def stats(self) -> dict[str, Any]:
        """Sums over the engines, restarts included; seconds are means. ``engines`` has one entry per engine."""
        totals = [replica.totals() for replica in self.replicas]
        summed = {name: sum(t.get(name, 0) for t in totals) for name in (*COUNTERS, *_NOW)}
        for name in ("busy_seconds", "swap_seconds"):
            summed[name] /= len(totals)
        uptime = time.perf_counter() - self._started
        return {
            "version": self.version,
            **summed,
            "uptime_seconds": uptime,
            "idle_share": max(0.0, 1.0 - summed["busy_seconds"] / uptime),
            "weights_stale": sum(t.get("weights_stale", 0) for t in totals),
            "weights_problem": self._weights_problem(totals),
            "engines_serving": len(self._serving()),
            "moved_requests": self._moved,
            "kept_tokens": self._kept,
            "engines": [replica.about() for replica in self.replicas],
        }

    def _weights_problem(self, totals: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The oldest ``weights_problem`` of the engines."""
        problems = [
            {**problem, "reason": f"{replica.engine.url}: {problem['reason']}"}
            for replica, stats in zip(self.replicas, totals)
            if (problem := stats.get("weights_problem"))
        ]
        return min(problems, key=lambda problem: problem["since"], default=None)

    async def ready(self) -> None:
        """Wait until an engine serves. Raises ValueError if an engine is unfit, e.g. serves another policy."""
        told = time.monotonic()
        while not self._serving():
            if unfit := [r for r in self.replicas if r.unfit]:
                raise ValueError(f"engine {unfit[0].engine.url}: {unfit[0].why}")
            if time.monotonic() - told > 10:
                told = time.monotonic()
                log.warning("waiting for engines: %s", self._complaints())
            await self._wait_change(1.0)

    async def close(self) -> None:
        self._closed = True
        self._notify()
        for poller in self._pollers:
            poller.cancel()
        await asyncio.gather(*self._pollers, return_exceptions=True)
        for replica in self.replicas:
            await replica.engine.close()

    # ---- one request ----

    async def _pick(self, session: str | None, failed: Mapping[Replica, EngineError]) -> Replica:
        """Wait for a serving engine and choose one for a request. Raises the last error of ``failed`` if no other
        engine serves."""
        deadline = time.monotonic() + self.settings.patience_seconds
        while True:
            if self._closed:
                raise EngineClosed("the engine is closed")
            if serving := self._serving():
                free = [replica for replica in serving if replica not in failed]
                if not free:
                    raise list(failed.values())[-1]
                return self._placement.choose(free, session)
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineClosed(f"no engine serves: {self._complaints()}")
            await self._wait_change(left)

    async def _attempt(self, replica: Replica, partial: Partial, session: str | None, *, live: bool) -> Completion:
        self._placement.settle(session, replica)
        listener = partial.listener()
        replica.running += 1
        try:
            return await replica.engine.generate(
                partial.prompt,
                partial.sampling,
                session=session,
                on_token=listener,
                on_report=listener.report,
                live=live,
                least=self._min_version,
            )
        finally:
            replica.running -= 1
            listener.stop()

    def _mark_down(self, replica: Replica, error: EngineClosed) -> None:
        """Stop using an engine until it has answered a status request."""
        replica.serving, replica.why = False, str(error)
        replica.look.set()

    # ---- the engines ----

    def _serving(self) -> list[Replica]:
        return [r for r in self.replicas if r.serving and r.engine.version >= self._min_version]

    def _require_version(self, version: int) -> None:
        """Let only engines with at least this version serve from now on; the others are asked to catch up."""
        if version > self._min_version:
            self._min_version = version
            for replica in self.replicas:
                if replica.engine.version < version:
                    replica.look.set()

    async def _follow(self, version: int) -> None:
        """Wait until one engine has ``version``, then as long again (at least a second) for the other engines."""
        began = time.monotonic()
        asked = {asyncio.ensure_future(r.engine.follow(version)): r for r in self._serving()}
        pending, problem, reached = set(asked), EngineError("no engine was asked"), False
        try:
            while pending and not reached:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    error = task.exception()
                    if error is None:
                        reached = True
                    elif isinstance(error, EngineError):
                        problem = error
                        if isinstance(error, EngineClosed):
                            self._mark_down(asked[task], error)
                    else:
                        raise error
            if not reached:
                raise problem
            self._require_version(version)
            if pending:
                await asyncio.wait(pending, timeout=max(1.0, time.monotonic() - began))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _poll(self, replica: Replica) -> None:
        """Poll an engine's status forever, and have it catch up with the weights before it serves."""
        while True:
            replica.look.clear()
            try:
                await replica.ask(self._vocabulary)
                if replica.engine.version < self._min_version:
                    replica.why = f"it has version {replica.engine.version} of the weights, not yet {self._min_version}"
                    await replica.engine.follow(self._min_version)
                replica.serving = True
            except (EngineError, ValueError, KeyError, TypeError) as error:
                if replica.serving:
                    log.warning("engine %s stopped serving: %s", replica.engine.url, error)
                replica.serving, replica.why, replica.unfit = False, str(error), isinstance(error, EngineUnfit)
            self._notify()
            pause = self.settings.poll_seconds if replica.serving else self.settings.poll_seconds / 5
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(replica.look.wait(), pause)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_change(self, seconds: float) -> None:
        """Wait until an engine's status was updated, for at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _complaints(self) -> str:
        return "; ".join(f"{r.engine.url}: {r.why}" for r in self.replicas if r not in self._serving())
