"""Places boxes on several hosts: a box on the host with the fewest boxes per processor, a fork where its snapshot is.

A host that does not answer gets no new boxes until it does, and one that fails to make a box comes last for a while.
Boxes that were there fail with SandboxError; a retry gets a box on another host. The set of hosts may change: a run
that places hosts lists them in a file (``PlacedHosts``), and the placement follows that file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from woodshed.cluster.service import read_admin_key
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import Backend, BoxSpec, Probe, Sandbox, SandboxError, Snapshot

from .wire import HostLost

_LOOK = 0.1
_AVOIDED = 30.0
"""Seconds for which a host that failed to make a box comes last. One that fails all at once is the emptiest, and would
otherwise be given every box."""
log = logging.getLogger(__name__)


class Place(Backend, Protocol):
    """A backend on one host, and the state of that host. ``where`` is its address."""

    where: str

    async def open(self) -> None:
        """Get the host's state. Raises HostLost if it does not answer, SandboxError if it is unsuitable."""
        ...

    def problem(self) -> str:
        """Return the reason why the host cannot be used now, or an empty string."""
        ...

    def load(self) -> tuple[int, int, str]:
        """Return the number of boxes alive and of processors, and why another box would have to wait (or '')."""
        ...

    def owns(self, snapshot: Snapshot) -> bool: ...


class Local:
    """This machine as a place."""

    where = "local"

    def __init__(self, pool: Pool) -> None:
        self._pool, self.name = pool, pool.name
        self._starting = 0
        self.probe, self.fork, self.drop, self.close = pool.probe, pool.fork, pool.drop, pool.close

    async def create(self, spec: BoxSpec) -> Sandbox:
        self._starting += 1
        try:
            return await self._pool.create(spec)
        finally:
            self._starting -= 1

    async def open(self) -> None: ...

    def problem(self) -> str:
        return ""

    def load(self) -> tuple[int, int, str]:
        # The pool counts boxes that are still starting; the placement counts those itself (``_starting``).
        return max(0, self._pool.stats()["living"] - self._starting), os.cpu_count() or 1, self._pool.short()

    def owns(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot is ours; ids of other hosts' snapshots contain the id of their server."""
        return "." not in snapshot.id


class Placement:
    """Implements ``protocol.Backend`` over ``places``, which all have the backend ``name``; ``close`` closes them.

    ``places``: a sequence of at least one place, or a function that returns the current places, the same object for a
    place as long as it stays. ``patience``: seconds to wait for a host if none answers.
    """

    def __init__(
        self, places: Sequence[Place] | Callable[[], Sequence[Place]], name: str, *, patience: float = 60.0
    ) -> None:
        self.name, self._patience = name, patience
        self._places: list[Place] = []
        if callable(places):
            self._present = places
        else:
            if len({place.where for place in places}) < len(places) or not places:
                raise ValueError("sandbox.hosts: name at least one host, and none twice")
            self._present = lambda: places
        self._starting: Counter[str] = Counter()
        self._failed: dict[str, float] = {}
        self._opened: asyncio.Task[None] | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def probe(self) -> Probe:
        """Combine the probes of all hosts: ok if every host is, with the capabilities that all of them have."""
        places = self._present()
        if not places:
            return Probe(False, ("no host of boxes is there",))
        probes = [place.probe() for place in places]
        reasons = tuple(f"{p.where}: {why}" for p, probe in zip(places, probes) for why in probe.reasons)
        common = frozenset.intersection(*(probe.capabilities for probe in probes))
        limits = {
            name: how
            for name, how in probes[0].limits_in_force.items()
            if all(name in probe.limits_in_force for probe in probes)
        }
        return Probe(all(probe.ok for probe in probes), reasons, common, limits)

    async def create(self, spec: BoxSpec) -> Sandbox:
        """Create a box on the least loaded host; if that is lost meanwhile, try another."""
        await self._open()
        deadline = time.monotonic() + self._patience
        while True:
            if serving := [place for place in self._now() if not place.problem()]:
                place = min(serving, key=self._cost)
                self._starting[place.where] += 1
                try:
                    return await place.create(spec)
                except HostLost as error:
                    if time.monotonic() > deadline:
                        raise
                    log.warning("a box is made elsewhere: %s", error)
                except SandboxError:
                    self._failed[place.where] = time.monotonic()
                    raise
                finally:
                    self._starting[place.where] -= 1
            elif time.monotonic() > deadline:
                problems = "; ".join(place.problem() for place in self._places)
                raise HostLost(f"no host of boxes answers: {problems or 'none is there'}")
            await asyncio.sleep(_LOOK)

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        return await self._home(snapshot).fork(snapshot, n)

    async def drop(self, snapshot: Snapshot) -> None:
        await self._home(snapshot).drop(snapshot)

    async def close(self) -> None:
        """End every box on every host."""
        if self._opened is not None:
            await asyncio.gather(self._opened, return_exceptions=True)
        await asyncio.gather(*(place.close() for place in self._places), *self._leaving)

    def _now(self) -> list[Place]:
        """Return the current hosts; close those that are gone, with everything that was made on them."""
        present = list(self._present())
        for place in [place for place in self._places if place not in present]:
            leaving = asyncio.create_task(place.close())
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._places = present
        return present

    def _cost(self, place: Place) -> tuple[bool, bool, float]:
        living, processors, short = place.load()
        failed = time.monotonic() - self._failed.get(place.where, -_AVOIDED) < _AVOIDED
        return failed, bool(short), (living + self._starting[place.where]) / processors

    async def _open(self) -> None:
        """Get the state of every host once, before the first box is placed."""
        if self._opened is None:
            self._opened = asyncio.create_task(self._hear())
        await asyncio.shield(self._opened)

    async def _hear(self) -> None:
        for outcome in await asyncio.gather(*(place.open() for place in self._now()), return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, HostLost):
                raise outcome

    def _home(self, snapshot: Snapshot) -> Place:
        for place in self._places:
            if place.owns(snapshot):
                return place
        raise SandboxError(f"snapshot {snapshot.id!r} is on no host of this run: it was dropped, or its host is lost")


T = TypeVar("T")


class PlacedHosts:
    """The folder in which a run lists the hosts that it placed."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hosts.json"
        """``{"hosts": {node: URL}, "left_out": {node: why}}``; a new version is renamed into place."""
        self.key_file = folder / "admin.key"

    def key(self) -> str:
        """Read the key of the hosts. Raises SandboxError."""
        try:
            return read_admin_key(self.key_file)
        except ValueError as error:
            raise SandboxError(str(error)) from None

    def read(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the addresses of the hosts that serve, and the reasons why other hosts cannot.

        Both are empty until the file exists. Raises SandboxError if the file is malformed.
        """
        try:
            state = json.loads(self.file.read_text(encoding="utf-8"))
            return tuple(sorted(map(str, state["hosts"].values()))), tuple(map(str, state["left_out"].values()))
        except FileNotFoundError:
            return (), ()
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SandboxError(f"{self.file} cannot be read ({error!r}); run again: it is written anew") from None


def following(hosts: PlacedHosts, connect: Callable[[str], T]) -> Callable[[], list[T]]:
    """Return a function that lists ``connect(address)`` of each current host; a host that stays keeps its object."""
    known: dict[str, T] = {}

    def now() -> list[T]:
        nonlocal known
        known = {url: known[url] if url in known else connect(url) for url in hosts.read()[0]}
        return list(known.values())

    return now
