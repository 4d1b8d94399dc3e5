"""One engine of several, as the router sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from woodshed.engine.errors import EngineError, EngineUnfit
from woodshed.engine.protocol import Completion, OnReport, OnToken, Sampling
from woodshed.engine.remote.wire import STUCK_SECONDS

COUNTERS = (
    "generated_tokens", "prefilled_tokens", "reused_tokens", "iterations", "swaps", "evictions", "swap_seconds",
    "busy_seconds", "drafted_tokens", "accepted_tokens",
)  # fmt: skip
"""Numbers of ``stats`` that only grow while an engine lives."""


class Peer(Protocol):
    """An engine in another process: ``RemoteEngine`` or ``VllmEngine``, which say what each of these does."""

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

    def release(self, session: str) -> None: ...

    def stats(self) -> dict[str, Any]: ...

    async def refresh(self) -> dict[str, Any]: ...

    async def follow(self, version: int, *, timeout: float = 300.0) -> int: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class Replica:
    """``serving``: it answered when it was last asked; ``why`` says what was wrong otherwise, and ``unfit`` that asking
    again does not help. ``running`` counts the router's own requests. ``look`` is set to ask it at once."""

    engine: Peer
    serving: bool = False
    why: str = "not asked yet"
    unfit: bool = False
    running: int = 0
    lost: int = 0
    context: int | None = None
    """Longest sequence in tokens, as it says."""
    look: asyncio.Event = field(default_factory=asyncio.Event)
    _before: dict[str, float] = field(default_factory=dict)

    async def ask(self, vocabulary: int | None) -> None:
        """Ask how it is. Raises EngineError where it cannot serve."""
        known = self.engine.stats()
        stats = await self.engine.refresh()
        if stats["uptime_seconds"] < known.get("uptime_seconds", 0.0):  # another process: it counts from zero
            self._before = {name: self._before.get(name, 0) + known[name] for name in COUNTERS}
        if vocabulary is not None and stats["vocabulary"] != vocabulary:
            raise EngineUnfit(f"it serves another policy: {stats['vocabulary']} tokens, not {vocabulary}")
        context = stats.get("context")
        self.context = context if isinstance(context, int) else None
        if stats["iteration_seconds"] > STUCK_SECONDS:
            raise EngineError(f"its iteration has taken {stats['iteration_seconds']:.0f} s so far")

    def totals(self) -> dict[str, Any]:
        """Its counters over all of its lives."""
        stats = self.engine.stats()
        return stats | {name: stats.get(name, 0) + self._before.get(name, 0) for name in COUNTERS}

    def about(self) -> dict[str, Any]:
        """For people."""
        shown = {"url": self.engine.url, "serving": self.serving, "version": self.engine.version}
        shown |= {"running": self.running, "lost_requests": self.lost}
        return shown if self.serving else shown | {"why": self.why}
