"""Fencing of a chain: its identity, and which publisher may write it. Imports no torch.

A publisher takes the next writer number by creating ``writer/000002.json``, which only one publisher can do, and then
records there the newest version it found. Later versions of earlier writers do not count. So a publisher that stalled
while another took over cannot harm the chain: its parts have its number in their names, its manifest never replaces
another, readers ignore it, and its next write raises PublisherFenced. The successor of a crashed publisher need not
wait.

The head is recorded again until a listing finds nothing newer. A version may therefore begin to count, but one that
counts never stops counting.
"""

from __future__ import annotations

import math
import os
import re
import socket
import time
import uuid

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import ChainError, ChainReplaced, PublisherFenced, TornVersion
from .manifest import Manifest, read_manifest, versions
from .store import Store, open_store

_RECORD = re.compile(r"writer/(\d{6,})\.json")
_TRIES = 100
EMPTY = -1
"""Head of an empty chain in a record."""


class Writer(BaseModel):
    """Record of one publisher. ``chain`` identifies the chain (random, chosen by its first publisher); ``head`` is None
    until it is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    chain: str
    number: int
    token: str
    process: str
    head: int | None = None

    def data(self) -> bytes:
        return self.model_dump_json().encode()


def writer_key(number: int) -> str:
    return f"writer/{number:06d}.json"


def newest_writer(store: Store, *, after: int = 0) -> int:
    """Return the number of the newest publisher above ``after``, or ``after`` if there is none."""
    found = (_RECORD.fullmatch(key) for key in store.listing(after=writer_key(after)))
    return max((int(match[1]) for match in found if match), default=after)


def read_writer(store: Store, number: int) -> Writer:
    """Read a publisher's record. Raises FileNotFoundError if there is none, TornVersion if it is damaged."""
    key = writer_key(number)
    try:
        return Writer.model_validate_json(store.get(key))
    except ValidationError as error:
        raise TornVersion(f"{store.url}/{key}: not a publisher's record: {error.errors()[0]['msg']}") from None


class Writers:
    """A reader's knowledge of a chain's publishers. Call ``look`` after listing versions, then ``counts``. Publisher
    ``without`` fences nobody."""

    def __init__(self, store: Store, *, without: int = 0) -> None:
        self.store = store
        self.newest: Writer | None = None
        self._without = without
        self._known: dict[int, Writer] = {}

    def look(self) -> None:
        """Read the newest record."""
        number = newest_writer(self.store)
        newest = read_writer(self.store, number) if number else None
        if newest is None or self.newest is None or newest.token != self.newest.token:
            self._known.clear()  # the newest publisher may have recorded its head again since it was read
        if newest is not None:
            self._known[number] = newest
        self.newest = newest

    def check_same(self, chain: str, version: int) -> None:
        """Raise ChainReplaced if the chain stored here is no longer ``chain``, which ``version`` came from."""
        if self.newest is None:
            raise ChainReplaced(
                f"{self.store.url}: the chain {chain} that version {version} came from is no longer there; "
                "restart its followers once there is another"
            )
        if self.newest.chain != chain:
            raise ChainReplaced(
                f"{self.store.url}: version {version} came from the chain {chain}, but now the chain "
                f"{self.newest.chain} lies here; restart its followers"
            )

    def counts(self, manifest: Manifest) -> bool:
        """Return whether a version belongs to the chain and was not written after its publisher was fenced."""
        if self.newest is None or manifest.chain != self.newest.chain:
            return False
        later = (n for n in range(manifest.writer + 1, self.newest.number + 1) if n != self._without)
        heads = (self._record(number).head for number in later)
        return all(head is None or manifest.version <= head for head in heads)

    def _record(self, number: int) -> Writer:
        known = self._known.get(number)
        if known is None or known.head is None:
            known = self._known[number] = read_writer(self.store, number)
        return known

    def counting(self, *, above: int | None = None) -> list[int]:
        """Numbers of the versions that count, ascending, including those whose manifest cannot be read."""
        found = versions(self.store, above=above)
        self.look()
        if self.newest is None or self.newest.number == 1:
            return found
        return [version for version in found if self._counts_here(version)]

    def _counts_here(self, version: int) -> bool:
        try:
            return self.counts(read_manifest(self.store, version))
        except TornVersion:
            return True
        except FileNotFoundError:
            return False


class Head:
    """Newest complete version of a chain, for frequent calls: lists only versions after the last answer, and only when
    that answer is ``seconds`` old."""

    def __init__(self, where: str | os.PathLike[str] | Store, *, seconds: float = 0.0) -> None:
        self._writers = Writers(open_store(where))
        self._newest: int | None = None
        self._seconds, self._looked = seconds, -math.inf

    def __call__(self) -> int | None:
        """Return the newest version; None for an empty chain."""
        if time.monotonic() - self._looked >= self._seconds:
            self._newest = max(self._writers.counting(above=self._newest), default=self._newest)
            self._looked = time.monotonic()
        return self._newest


class Fence:
    """A publisher's claim on a chain. Taking it fences every earlier publisher."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.writer = _claim(store)
        self._settle()

    @property
    def head(self) -> int | None:
        """Newest version when the chain was taken over; None for an empty chain."""
        return None if self.writer.head in (None, EMPTY) else self.writer.head

    def check(self, version: int) -> None:
        """Raise PublisherFenced, naming the process that took over, if there is one; ChainReplaced if the chain was
        deleted or replaced."""
        number = newest_writer(self.store, after=self.writer.number)
        try:
            newest = read_writer(self.store, number)
        except FileNotFoundError:
            newest = None
        if newest is None or newest.chain != self.writer.chain:
            raise ChainReplaced(
                f"{self.store.url}: the chain {self.writer.chain} was deleted or replaced while it was being written; "
                f"version {version} was not published"
            )
        if newest.token != self.writer.token:
            raise PublisherFenced(
                f"{self.store.url}: another publisher ({newest.process}) has taken over this chain; version {version} "
                f"of this one ({self.writer.process}) was not published. End one of the two, or give each run a "
                "chain of its own"
            )

    def _settle(self) -> None:
        # without the own record, which would fence versions that readers counted before it had a head
        writers = Writers(self.store, without=self.writer.number)
        while True:
            head = max(writers.counting(), default=EMPTY)
            if head == self.writer.head:
                return
            self.writer = self.writer.model_copy(update={"head": head})
            self.store.put(writer_key(self.writer.number), self.writer.data())


def _claim(store: Store) -> Writer:
    for _ in range(_TRIES):
        last = newest_writer(store)
        chain = read_writer(store, last).chain if last else uuid.uuid4().hex
        mine = Writer(
            chain=chain,
            number=last + 1,
            token=uuid.uuid4().hex,
            process=f"process {os.getpid()} on {socket.gethostname()}",
        )
        if store.create(writer_key(mine.number), mine.data()):
            return mine
    raise ChainError(f"{store.url}: another publisher took the chain first {_TRIES} times; end the others")
