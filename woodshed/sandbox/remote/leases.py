"""Leases of a box server's clients: a client that goes silent has its boxes closed."""

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
"""Maximum number of remembered requests per client: it can still give up the boxes of these."""
_AT_ONCE = 500
"""Maximum number of egress lines in one answer: a frame's header holds 8 MiB, and a line is at most 12 KiB."""
_KNOWN = 65_536
"""Maximum number of boxes, including closed ones, whose egress lines a client still gets."""
log = logging.getLogger(__name__)


class Lease:
    """One client's boxes and snapshots by name, and the egress lines of its boxes that it does not have yet."""

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
        """Add the boxes made for the request ``token``; return False if the client has given them up."""
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
        """Remove and return the box ``name``, or the boxes of the request ``name``; later boxes of it are refused."""
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
        """Return a box. Raises HostLost if the client does not have it (any more)."""
        try:
            return self.boxes[id]
        except KeyError:
            raise HostLost(f"{id:.60} is not a box of this client: it was closed, or its lease ended") from None

    def note(self, number: int, line: dict[str, Any]) -> None:
        self._lines.append((number, line))

    def lines(self, have: int) -> list[tuple[int, dict[str, Any]]]:
        """Forget the lines up to number ``have``, which the client has; return the next ones.

        At most as many as fit into a frame; the rest comes with the next answer.
        """
        self._lines = [(number, line) for number, line in self._lines if number > have]
        return self._lines[:_AT_ONCE]


class Leases:
    def __init__(self, backend: Backend, seconds: float) -> None:
        self._backend, self.seconds = backend, seconds
        self._leases: dict[str, Lease] = {}
        self.ended = 0
        """Number of leases that ended because the client was silent."""

    def of(self, client: str) -> Lease:
        """Renew and return the client's lease; begin one if there is none."""
        lease = self._leases.get(client)
        if lease is None:
            lease = self._leases[client] = Lease(client)
        lease.heard = time.monotonic()
        return lease

    def owner(self, box: str) -> Lease | None:
        """Return the lease that a box belongs or belonged to."""
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
        """End the leases of silent clients, for ever."""
        while True:
            await asyncio.sleep(self.seconds / 4)
            for lease in list(self._leases.values()):
                # Checked one by one: while the boxes of another client were closed, this one may have come back.
                if lease.heard >= time.monotonic() - self.seconds:
                    continue
                log.warning("client %s is gone: %d boxes are closed", lease.name[:8], len(lease.boxes))
                self.ended += 1
                await self.end(lease.name)

    async def _all(self, ending: Iterable[Any]) -> None:
        for outcome in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, SandboxError):
                log.error("a box or snapshot of a gone client could not be closed: %r", outcome)
