"""The order in which waiting requests are admitted: fair between trajectories, in order of arrival within one.

Start-time fair queueing (Goyal, Vin and Cheng 1996, section 2) with requests of equal weight and cost: a request is
tagged with one more than the later of the last tag of its trajectory and the tag that was admitted last; the smallest
tag is next. So a trajectory with a hundred requests does not hold up one with a single request, and nobody waits for
ever. Imports no torch.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import count

from .protocol import trajectory_of
from .request import Request


class FairQueue:
    """Waiting requests. Engine's thread only, but ``len``."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Request]] = []
        self._arrivals = count()
        self._admitted = 0
        self._last: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, _, request in self._queue)

    def extend(self, requests: Iterable[Request]) -> None:
        for request in requests:
            owner = None if request.session is None else trajectory_of(request.session)
            tag = 1 + max(self._admitted, 0 if owner is None else self._last.get(owner, 0))
            if owner is not None:
                self._last[owner] = tag
            insort(self._queue, (tag, next(self._arrivals), request))

    def first(self) -> Request:
        """The next one; IndexError where none waits."""
        return self._queue[0][2]

    def pop(self) -> Request:
        """Take the next one out."""
        tag, _, request = self._queue.pop(0)
        self._admitted = tag
        if not self._queue:  # whoever comes now begins with the same tag, whatever the past
            self._last.clear()
        return request

    def remove(self, request: Request) -> None:
        self._queue = [entry for entry in self._queue if entry[2] is not request]
