"""The router's view of its engines: the state of each, and which one a request goes to."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from woodshed.engine.protocol import Completion, EngineError, EngineUnfit, OnReport, OnToken, Sampling, trajectory_of
from woodshed.engine.remote.wire import STUCK_SECONDS

COUNTERS = (
    "generated_tokens",
    "prefilled_tokens",
    "reused_tokens",
    "iterations",
    "swaps",
    "evictions",
    "swap_seconds",
    "busy_seconds",
    "drafted_tokens",
    "accepted_tokens",
)
"""Names in ``stats`` whose values never decrease while an engine runs."""


class Peer(Protocol):
    """An engine in another process: ``RemoteEngine`` or ``VllmEngine``; see there for what each method does."""

    url: str

    @property
    def version(self) -> int: ...

    async def generate(
        self,
        tokens: Sequence[int],
        sampling: Sampling,
        *,
        session: str | None = None,
        on_token: OnToken | None = None,
        on_report: OnReport | None = None,
        live: bool = True,
        least: int = 0,
    ) -> Completion: ...

    def grammars_refused(self) -> str | None: ...

    def kept_sets_refused(self) -> str | None: ...

    def release(self, session: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    async def refresh(self) -> dict[str, Any]: ...

    async def follow(self, version: int, *, timeout: float = 300.0) -> int: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class Replica:
    """State of one engine. ``serving``: it answered the last status request; otherwise ``why`` gives the reason, and
    ``unfit`` is True if it will never serve. ``running`` counts the router's own requests. Setting ``look`` makes the
    router ask for the engine's status at once."""

    engine: Peer
    serving: bool = False
    why: str = "not asked yet"
    unfit: bool = False
    running: int = 0
    lost: int = 0
    context: int | None = None
    """Maximum sequence length in tokens, as the engine reports it."""
    look: asyncio.Event = field(default_factory=asyncio.Event)
    _before: dict[str, float] = field(default_factory=dict)

    async def ask(self, vocabulary: int | None) -> None:
        """Fetch the engine's status. Raises EngineError if it cannot serve."""
        known = self.engine.stats()
        stats = await self.engine.refresh()
        if stats["uptime_seconds"] < known.get("uptime_seconds", 0.0):  # restarted: its counters are zero again
            self._before = {name: self._before.get(name, 0) + known[name] for name in COUNTERS}
        if vocabulary is not None and stats["vocabulary"] != vocabulary:
            raise EngineUnfit(f"it serves another policy: {stats['vocabulary']} tokens, not {vocabulary}")
        context = stats.get("context")
        self.context = context if isinstance(context, int) else None
        if stats["iteration_seconds"] > STUCK_SECONDS:
            raise EngineError(f"its iteration has taken {stats['iteration_seconds']:.0f} s so far")

    def totals(self) -> dict[str, Any]:
        """The engine's ``stats``, with counters summed over all its restarts."""
        stats = self.engine.stats()
        return stats | {name: stats.get(name, 0) + self._before.get(name, 0) for name in COUNTERS}

    def about(self) -> dict[str, Any]:
        """The engine's entry in the router's ``stats``."""
        shown = {"url": self.engine.url, "serving": self.serving, "version": self.engine.version}
        shown |= {"running": self.running, "lost_requests": self.lost}
        return shown if self.serving else shown | {"why": self.why}


MOST = 1 << 16
"""Maximum number of trajectories remembered. The least recently used one is forgotten, which loses at most its cached
prefix."""


class Placement:
    """Chooses engines: the one that holds the trajectory's prefix, unless it has over ``spread`` requests more than
    the least busy one. Remembers which engine has each session."""

    def __init__(self, spread: int) -> None:
        self._spread = spread
        self._homes: OrderedDict[str, dict[str, Replica]] = OrderedDict()

    def choose(self, replicas: Sequence[Replica], session: str | None) -> Replica:
        """Choose one of ``replicas`` (at least one, all serving)."""
        least = min(replicas, key=lambda replica: replica.running)
        if session is None:
            return least
        sessions = self._homes.get(trajectory_of(session), {})
        # else the most recently used session of the trajectory, which shares a prefix with this one
        home = sessions.get(session) or next(reversed(sessions.values()), None)
        if home is not None and home in replicas and home.running - least.running <= self._spread:
            return home
        return least

    def settle(self, session: str | None, replica: Replica) -> None:
        """Record that the session is in ``replica`` now, and release it in the engine that had it before."""
        if session is None:
            return
        name = trajectory_of(session)
        sessions = self._homes.setdefault(name, {})
        self._homes.move_to_end(name)
        before = sessions.pop(session, replica)
        if before is not replica:
            before.engine.release(session)
        sessions[session] = replica
        if len(self._homes) > MOST:
            for forgotten, where in self._homes.popitem(last=False)[1].items():
                where.engine.release(forgotten)

    def release(self, session: str) -> None:
        """Forget a session, here and in its engine."""
        name = trajectory_of(session)
        sessions = self._homes.get(name, {})
        if (replica := sessions.pop(session, None)) is not None:
            replica.engine.release(session)
            if not sessions:
                del self._homes[name]
