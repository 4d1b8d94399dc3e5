"""What belongs to whom on a box server: a client that goes away has its boxes closed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from woodshed.sandbox.protocol import Backend, Sandbox, SandboxError, Snapshot

from .wire import HostLost

_REMEMBERED = 4096
"""Requests of one client whose boxes it can still refuse."""
_AT_ONCE = 500
"""Lines in one answer: a frame's header holds 8 MiB, and a line is 12 KiB at most."""
_KNOWN = 65_536
"""Boxes of one client, also those that are gone, whose egress it is still told."""
log = logging.getLogger(__name__)


class Lease:
    """One client: its boxes and snapshots by name, and the lines of its boxes' egress that it does not have yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.heard = time.monotonic()
        self.boxes: dict[str, Sandbox] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.ids: OrderedDict[str, None] = OrderedDict()
        self.ended = False
        self._made: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._lines: list[tuple[int, dict[str, Any]]] = []

    def add(self, token: str, boxes: Sequence[Sandbox]) -> bool:
        """What came of the request ``token``; False where nobody wants it any more."""
        if self.ended or token in self._made:
            return False
        for box in boxes:
            self.boxes[box.id] = box
            self.ids[box.id] = None
            if len(self.ids) > _KNOWN:
                self.ids.popitem(last=False)
        self._remember(token, tuple(box.id for box in boxes))
        return True

    def take(self, name: str) -> list[Sandbox]:
        """The box ``name``, or all that came, or would come, of the request ``name``: to be closed."""
        if name not in self.boxes:
            names = self._made.get(name, ())
            self._remember(name, ())
        else:
            names = (name,)
        return [self.boxes.pop(n) for n in names if n in self.boxes]

    def _remember(self, token: str, ids: tuple[str, ...]) -> None:
        self._made[token] = ids
        if len(self._made) > _REMEMBERED:
            self._made.popitem(last=False)

    def box(self, id: str) -> Sandbox:
        """Raises HostLost for one that this client has not, or no more."""
        try:
            return self.boxes[id]
        except KeyError:
            raise HostLost(f"{id:.60} is not a box of this client: it was closed, or its lease ended") from None

    def note(self, number: int, line: dict[str, Any]) -> None:
        self._lines.append((number, line))

    def lines(self, have: int) -> list[tuple[int, dict[str, Any]]]:
        """The first of those after number ``have``, up to which the client says that it has them: these are forgotten
        here. Not more at once than a frame takes, however many requests boxes have made; the rest comes next time."""
        self._lines = [(number, line) for number, line in self._lines if number > have]
        return self._lines[:_AT_ONCE]


class Leases:
    def __init__(self, backend: Backend, seconds: float) -> None:
        self._backend, self.seconds = backend, seconds
        self._leases: dict[str, Lease] = {}
        self.ended = 0
        """Leases that ended because nothing was heard."""

    def of(self, client: str) -> Lease:
        """The client's lease, which begins now where it has none, and is renewed."""
        lease = self._leases.get(client)
        if lease is None:
            lease = self._leases[client] = Lease(client)
        lease.heard = time.monotonic()
        return lease

    def owner(self, box: str) -> Lease | None:
        """Whose box that is or was."""
        return next((lease for lease in self._leases.values() if box in lease.ids), None)

    def living(self) -> int:
        return sum(len(lease.boxes) for lease in self._leases.values())

    def __len__(self) -> int:
        return len(self._leases)

    async def end(self, client: str) -> None:
        """Close the client's boxes and drop its snapshots."""
        lease = self._leases.pop(client, None)
        if lease is None:
            return
        lease.ended = True
        boxes, lease.boxes = list(lease.boxes.values()), {}
        await self._all(box.close() for box in boxes)
        snapshots, lease.snapshots = list(lease.snapshots.values()), {}
        await self._all(self._backend.drop(snapshot) for snapshot in reversed(snapshots))

    async def watch(self) -> None:
        """End the leases of clients that say nothing, for ever."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            limit = time.monotonic() - self.seconds
            for lease in [lease for lease in self._leases.values() if lease.heard < limit]:
                log.warning("client %s is gone: %d boxes are closed", lease.name[:8], len(lease.boxes))
                self.ended += 1
                await self.end(lease.name)

    async def _all(self, ending: Iterable[Any]) -> None:
        for outcome in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, SandboxError):
                log.error("what a client left could not be ended: %r", outcome)
