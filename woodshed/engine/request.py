"""Work that callers submit to the engine: requests and weight swaps, and the delivery of their results."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .grammar import Matcher
from .protocol import Completion, OnReport, OnToken, Sampling, StopReason, TokenReport
from .sampler import Counts, TokenCounts
from .settings import KvPolicy

REST = 16
"""Steps without a draft after a draft of one token was rejected."""


class DraftLength:
    """Adapts one request's draft length to how many drafted tokens were accepted. Deterministic; state per request."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = max(1, most // 2)
        self._resting = 0

    def next(self) -> int:
        """Number of tokens to draft in the next step."""
        if self._resting:
            self._resting -= 1
            return 0
        return self.count

    def update(self, drafted: int, kept: int) -> None:
        """Record that ``kept`` of ``drafted`` tokens were accepted."""
        if kept == drafted:
            self.count = min(self.most, max(self.count, kept) + 1)
        elif kept:
            self.count = kept + 1
        elif self.count > 1:
            self.count //= 2
        else:
            self._resting = REST


def seeded(seed: int, drawn: int) -> random.Random:
    """Return the random generator of a seed, advanced past the first ``drawn`` tokens; each sampled token takes one
    number."""
    rng = random.Random(seed)
    for _ in range(drawn):
        rng.random()
    return rng


@dataclass(eq=False)
class Request:
    """One ``generate`` call.

    ``prompt`` int32 ``[P]``. ``limit`` is the maximum number of sampled tokens (``max_tokens``, or less where the
    context ends). ``row`` is its cache row while it runs, else -1. ``cached`` counts prompt tokens found in the
    session's own row or copied from another session, ``returned`` those whose routes an earlier completion of the
    session has returned. ``draft`` holds drafted tokens that the next step verifies. ``matcher`` and ``counts`` include
    all of ``tokens``. ``routes`` int16 ``[n, L, K]`` keeps the routes of the first n tokens as they were at sampling
    time, if those tokens have been recomputed since.
    """

    prompt: NDArray[np.int32]
    sampling: Sampling
    limit: int
    session: str | None
    on_token: OnToken | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    rng: random.Random
    stop_ids: frozenset[int]
    row: int = -1
    started: bool = False
    returned: int = 0
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cancelled: bool = False
    draft: list[int] = field(default_factory=list)
    draft_length: DraftLength | None = None
    matcher: Matcher | None = None
    counts: TokenCounts | None = None
    on_report: OnReport | None = None
    reports: list[TokenReport] = field(default_factory=list)
    routes: NDArray[np.int16] | None = None
    _uniforms: deque[float] = field(default_factory=deque)

    @property
    def total(self) -> int:
        """Number of prompt tokens plus sampled tokens."""
        return len(self.prompt) + len(self.tokens)

    @property
    def longest(self) -> int:
        """Maximum number of tokens the sequence can reach."""
        return len(self.prompt) + self.limit

    def uniforms(self, count: int) -> list[float]:
        """Random numbers of the next ``count`` positions; the i-th sampled token always takes the i-th number."""
        while len(self._uniforms) < count:
            self._uniforms.append(self.rng.random())
        return list(itertools.islice(self._uniforms, count))

    def allowed(self) -> list[NDArray[np.uint8]]:
        """The tokens that the grammar allows at the next position and after each token of the draft, as in
        ``Matcher.allowed``; empty without a grammar."""
        return [] if self.matcher is None else self.matcher.allowed_after(self.draft)

    def counts_after_draft(self) -> list[Counts]:
        """The token counts for penalties at the next position and after each token of the draft; empty without
        penalties."""
        return [] if self.counts is None else self.counts.after(self.draft)

    def agreeing(self, sampled: Sequence[int]) -> int:
        """Return how many tokens of ``sampled`` are accepted: up to and including the first that differs from the
        draft, is a stop token or reaches the limit. ``sampled`` has one token more than ``draft``."""
        for i, token in enumerate(sampled, 1):
            wrong = i <= len(self.draft) and token != self.draft[i - 1]
            if wrong or token in self.stop_ids or len(self.tokens) + i >= self.limit:
                return i
        return len(sampled)

    def accept(self, token: int, logprob: float, version: int, report: TokenReport | None) -> StopReason | None:
        """Append a sampled token. Return the stop reason if the request is done, else None."""
        self._uniforms.popleft()
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.matcher is not None and token not in self.stop_ids:
            self.matcher.advance([token])
        if self.counts is not None:
            self.counts.add(token)
        if report is not None:
            self.reports.append(report)
            if self.on_report is not None:
                self.on_report(report)
        enough = self.on_token is not None and self.on_token(token, logprob, version) is True
        if token in self.stop_ids:
            return "stop"
        if len(self.tokens) >= self.limit:
            return "length"
        return "cancelled" if enough else None

    def completion(self, reason: StopReason, routes: NDArray[np.int16] | None) -> Completion:
        """Return the result of the request. ``routes`` int16 ``[total, L, K]`` are those of its cache row (-1 where
        unknown), which ``self.routes`` overwrites in place; None without experts."""
        prompt_routes = completion_routes = None
        if routes is not None:
            if self.routes is not None:
                routes[: len(self.routes)] = self.routes
            prompt_routes, completion_routes = np.split(routes[self.returned :], [len(self.prompt) - self.returned])
        return Completion(
            tokens=self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            stop_reason=reason,
            routes=completion_routes,
            prompt_routes=prompt_routes,
            cached_tokens=self.cached,
            reports=self.reports if self.sampling.with_reports else None,
        )


def _settle(results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in results:
        if future.done():  # the caller cancelled it
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


class Outbox:
    """Hands results from the engine's thread to asyncio callers, with one wake-up per event loop and ``flush``.
    Engine's thread only."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def put(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any) -> None:
        self._pending.setdefault(loop, []).append((future, result))

    def flush(self) -> None:
        for loop, results in self._pending.items():
            try:
                loop.call_soon_threadsafe(_settle, results)
            except RuntimeError:  # the caller's event loop is closed
                pass
        self._pending.clear()


@dataclass(eq=False)
class Swap:
    """A weight swap that waits for the end of an iteration; ``future`` gets the seconds for which sampling paused."""

    version: int
    state: Mapping[str, Tensor]
    kv: KvPolicy
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[float]
