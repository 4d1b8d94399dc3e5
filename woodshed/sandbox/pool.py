"""A backend around another backend: admits boxes while the machine has room, and forks heavy ones from warm bases.

A pool implements ``protocol.Backend``, so callers need not know of it. The backends themselves clean up after an owner
that was killed: their helper process ends with it, and the next start removes what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from woodshed.sandbox.host.bases import Bases
from woodshed.sandbox.host.pressure import Admission, Bounds, Load
from woodshed.sandbox.host.supervised import all_or_none

from .faults import convert_host_errors
from .protocol import Backend, BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported

_log = logging.getLogger(__name__)


class Pool:
    """Boxes of ``backend`` with admission control and warm bases.

    ``look`` measures the machine's load. ``max_boxes``: boxes alive at once. ``patience``: seconds that a box waits for
    room. ``bases`` and ``base_bytes``: maximum number and total size of the warm bases.
    """

    def __init__(
        self,
        backend: Backend,
        look: Callable[[], Load],
        bounds: Bounds,
        *,
        max_boxes: int | None = None,
        patience: float = 300.0,
        bases: int = 32,
        base_bytes: int = 1 << 30,
    ) -> None:
        self.backend, self.name = backend, backend.name
        self._most = max_boxes
        self._bases = Bases(self._seal, backend.drop, most=bases, most_bytes=base_bytes)
        self._admission = Admission(look, bounds, most=max_boxes, patience=patience, relieve=self._bases.evict)

    def probe(self) -> Probe:
        """Return what the backend's own probe finds."""
        return self.backend.probe()

    async def create(self, spec: BoxSpec) -> Sandbox:
        """Wait for room, then make a box: from a warm base of an equal specification where that is cheaper."""
        return await self._admit(lambda: self._make(spec))

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """Make ``n`` boxes from a snapshot, each as soon as there is room for it."""
        if self._most is not None and n > self._most:
            raise Unsupported(f"{n} forks at once, and sandbox.max_boxes is {self._most}")

        async def one() -> Sandbox:
            return (await self.backend.fork(snapshot))[0]

        return await all_or_none(self._admit(one) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        await self.backend.drop(snapshot)

    async def close(self) -> None:
        """End every box and forget every base."""
        self._bases.clear()
        await self.backend.close()

    def short(self) -> str:
        """Return the reason why a box would have to wait now; empty if it would not."""
        return self._admission.problem()

    def stats(self) -> dict[str, Any]:
        """Count boxes alive, boxes that waited and their total wait (seconds), bases kept, made, used and evicted."""
        admission, bases = self._admission, self._bases
        return {
            "living": admission.living,
            "waited": admission.waited,
            "wait_seconds": round(admission.seconds, 3),
            "bases": len(bases),
            "bases_made": bases.made,
            "bases_used": bases.used,
            "bases_evicted": bases.evicted,
        }

    async def _admit(self, start: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        await self._admission.take()
        try:
            box = await start()
        except BaseException:
            self._admission.give()
            raise
        box.when_closed(self._admission.give)
        return box

    async def _make(self, spec: BoxSpec) -> Sandbox:
        key = self._bases.key(spec)
        if key is None:
            return await self.backend.create(spec)
        made: list[Sandbox] = []
        try:
            async with self._bases.borrow(key, spec) as base:
                made = await self.backend.fork(base)
        except SandboxError as error:  # the base was lost with its helper process, or create raises the cause again
            _log.warning("a box is made without its warm base: %s", error)
            return await self.backend.create(spec)
        except asyncio.CancelledError:  # perhaps after the fork, while another base was dropped
            await asyncio.gather(*(box.close() for box in made))
            raise
        return made[0]

    @convert_host_errors
    async def _seal(self, spec: BoxSpec) -> Snapshot:
        box = await self.backend.create(spec)
        try:
            return await box.snapshot("fs")
        finally:
            await box.close()
