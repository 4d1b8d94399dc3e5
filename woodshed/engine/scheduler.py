"""The scheduler: admits waiting requests and plans each iteration.

Admission is start-time fair queueing (Goyal, Vin and Cheng 1996, section 2) between trajectories, with requests of
equal weight and cost, and in order of arrival within one trajectory. A request's tag is one more than the larger of its
trajectory's last tag and the last admitted tag; the smallest tag is next. So a trajectory with a hundred requests does
not delay one with a single request, and no request starves.

The pending tokens of a running request are those of its sequence that are not in the cache. One sampled pending token
is a decode step; more are a prompt (or a sequence to recompute after a weight swap), computed in chunks in order of
arrival. A token is sampled when nothing is pending after an iteration. The drafted tokens of a request are verified in
one chunk with its last token.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from .attention import Chunk
from .cache import RowCache
from .protocol import trajectory_of
from .request import Request
from .settings import EngineSettings


class FairQueue:
    """Waiting requests, fair between trajectories. Engine's thread only, except ``len``."""

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
        """The next request. Raises IndexError if none waits."""
        return self._queue[0][2]

    def pop(self) -> Request:
        """Remove and return the next request."""
        tag, _, request = self._queue.pop(0)
        self._admitted = tag
        self._forget()
        return request

    def remove(self, request: Request) -> None:
        self._queue = [entry for entry in self._queue if entry[2] is not request]
        self._forget()

    def _forget(self) -> None:
        if not self._queue:  # from now on all trajectories start with the same tag
            self._last.clear()


@dataclass
class Step:
    """Plan of one iteration: decoding requests in order of rows, then chunks with their requests."""

    decoding: list[Request]
    decode_rows: NDArray[np.int64]
    chunks: list[Chunk]
    chunked: list[Request]


class Scheduler:
    """Admits requests, reuses cached prefixes and plans iterations. Engine's thread only."""

    def __init__(self, cache: RowCache, settings: EngineSettings, waiting: FairQueue) -> None:
        self.cache, self.settings, self.waiting = cache, settings, waiting
        self.running: list[Request] = []

    def admit(self, version: int) -> None:
        """Move waiting requests into the batch while there is room; the first that does not fit blocks the others."""
        while self.waiting and len(self.running) < self.settings.max_running:
            request = self.waiting.first()
            if request.cancelled:
                self.waiting.pop()
                continue
            rows_before = self.cache.rows, self.cache.length
            row = self.cache.acquire(request.session, request.longest)
            if (self.cache.rows, self.cache.length) != rows_before:
                for other in self.running:
                    other.row = self.cache.moved[other.row]
            if row is None:
                return
            self.waiting.pop()
            request.row = row
            self._reuse(request, version)
            self.running.append(request)

    def _reuse(self, request: Request, version: int) -> None:
        """Keep the common prefix of the request's prompt and its row, under the rules of ``_share`` where the row holds
        what another session left."""
        cache, row, prompt = self.cache, request.row, request.prompt
        mode, least = self.settings.prefix_cache, self.settings.share_prefix
        others = bool(cache.left[row])
        stale = mode == "off" or ((mode == "salt" or others) and cache.oldest[row] != version)
        held = 0 if stale else int(cache.lengths[row])
        if held:
            n = min(held, len(prompt))
            differs = cache.tokens[row, :n] != prompt[:n]
            held = int(differs.argmax()) if differs.any() else n
        # the last prompt token is always computed, because its logits are needed
        held = min(held, len(prompt) - 1)
        if others and (held < least or not least):
            held = 0
        cache.left[row] = False
        cache.lengths[row] = held
        cache.tokens[row, : len(prompt)] = prompt
        cache.tokens[row, len(prompt) :] = -1  # never part of a common prefix
        request.cached = held
        request.returned = cache.returned[row] = min(int(cache.returned[row]), held)

    def plan(self, version: int) -> Step:
        """Plan the next iteration. A running request that is not in it waits for a shared prefix or for room in the
        prefill budget."""
        decoding: list[Request] = []
        chunks: list[Chunk] = []
        chunked: list[Request] = []
        budget = self.settings.prefill_tokens
        prefilling: set[int] = set()
        for request in self.running:
            done = int(self.cache.lengths[request.row])
            pending = request.total - done
            # the last token of a fully cached prompt is computed as a chunk, as it is when the whole prompt is computed
            if pending == 1 and done and (request.tokens or request.draft):
                request.started = True
                if request.draft:
                    self.cache.tokens[request.row, request.total : request.total + len(request.draft)] = request.draft
                    chunks.append(Chunk(request.row, done, 1 + len(request.draft)))
                    chunked.append(request)
                else:
                    decoding.append(request)
                continue
            if budget <= 0:
                continue
            if not request.started:
                if self._share(request, version, prefilling):
                    continue
                request.started = True
                done = int(self.cache.lengths[request.row])
                pending = request.total - done
            if done == 0:
                self.cache.oldest[request.row] = version
            prefilling.add(request.row)
            count = min(pending, budget)
            budget -= count
            chunks.append(Chunk(request.row, done, count))
            chunked.append(request)
        decoding.sort(key=lambda r: r.row)
        return Step(decoding, np.array([r.row for r in decoding], np.int64), chunks, chunked)

    def _share(self, request: Request, version: int, prefilling: set[int]) -> bool:
        """Copy a longer common prefix from another row. Returns True if the request should wait, because a row of this
        iteration (one of ``prefilling``) is computing such a prefix."""
        least = self.settings.share_prefix
        cache, row = self.cache, request.row
        if not least or self.settings.prefix_cache == "off":
            return False
        held = int(cache.lengths[row])
        common = np.minimum(cache.common_prefixes(request.prompt), len(request.prompt) - 1)
        usable = np.where(cache.oldest == version, common, 0)
        usable[row] = 0
        ready = np.minimum(usable, cache.lengths)
        source = int(ready.argmax())
        best = max(held, int(ready[source]))
        if any(usable[other] >= best + least for other in prefilling):
            return True
        if ready[source] >= held + least:
            cache.copy_prefix(source, row, int(ready[source]))
            request.cached = int(ready[source])
        return False

    def retire(self, request: Request) -> None:
        """Remove a finished request; its session keeps the computed tokens."""
        self.running.remove(request)
        if not request.cancelled:  # else nobody gets the completion
            self.cache.returned[request.row] = min(request.total, int(self.cache.lengths[request.row]))
        self.cache.release(request.row)

    def take_back(self, request: Request) -> None:
        """Remove a cancelled request from the queue, or note that nobody got its completion, so that the next request
        of its session returns its routes."""
        self.waiting.remove(request)
        row = None if request.session is None else self.cache.sessions.get(request.session)
        if row is not None and request.row >= 0:
            self.cache.returned[row] = min(int(self.cache.returned[row]), request.returned)

    def forget(self, request: Request) -> None:
        """Remove a failed request and erase its row, which must not be reused."""
        self.running.remove(request)
        self.cache.scrub(request.row)
        self.cache.drop(request.row)
        self.cache.release(request.row)

    def invalidate(self) -> None:
        """Discard all keys and values. Running requests continue after recomputing theirs, and remember the routes
        under which their tokens were sampled."""
        for request in self.running:
            if self.cache.routes is not None and request.tokens:
                known = self.cache.routes[request.row, : self.cache.lengths[request.row]].copy()
                if request.routes is not None:  # recomputed before: the older routes are those of sampling time
                    known = np.concatenate([request.routes, known[len(request.routes) :]])
                request.routes = known
        self.cache.lengths[:] = 0
