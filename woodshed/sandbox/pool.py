"""A backend as a run uses it: boxes are let in by what the machine has left, and heavy ones fork from warm bases.

A pool is a ``protocol.Backend`` around another, so whoever makes boxes needs to know nothing of it. What a killed owner
leaves is collected by the backends themselves: their helper process ends with it, and the next start sweeps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from woodshed.sandbox.host.bases import Bases
from woodshed.sandbox.host.kept import all_or_none
from woodshed.sandbox.host.pressure import Admission, Bounds, Load

from .faults import of_the_machine
from .protocol import Backend, BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported


class Pool:
    """``look`` measures the machine. ``max_boxes``: alive at once; ``bases`` and ``base_bytes`` bound what is warm."""

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
        """As the backend says."""
        return self.backend.probe()

    async def create(self, spec: BoxSpec) -> Sandbox:
        """A box, when there is room: from the warm base of equal specifications where that is cheaper."""
        return await self._admit(lambda: self._make(spec))

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """``n`` boxes, when there is room for each."""
        if self._most is not None and n > self._most:
            raise Unsupported(f"{n} forks at once, and sandbox.max_boxes is {self._most}")

        async def one() -> Sandbox:
            return (await self.backend.fork(snapshot))[0]

        return await all_or_none(self._admit(one) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        await self.backend.drop(snapshot)

    async def close(self) -> None:
        """End every box, forget every base."""
        self._bases.clear()
        await self.backend.close()

    def short(self) -> str:
        """Why a box would have to wait now, or nothing."""
        return self._admission.problem()

    def stats(self) -> dict[str, Any]:
        """Boxes alive, those that waited for room and how long together (seconds); bases now, made, used, evicted."""
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
        try:
            async with self._bases.borrow(key, spec) as base:
                return (await self.backend.fork(base))[0]
        except SandboxError:  # the base went with its helper process; whatever else is wrong shows again
            return await self.backend.create(spec)

    @of_the_machine
    async def _seal(self, spec: BoxSpec) -> Snapshot:
        box = await self.backend.create(spec)
        try:
            return await box.snapshot("fs")
        finally:
            await box.close()
