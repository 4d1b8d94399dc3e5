"""A request inside the engine, from submission to delivery. Imports no torch.

Hands results from the engine's thread to asyncio callers: one wake-up per event loop and iteration.

How far to guess ahead. Imports no torch.

A weight swap that waits for the end of an iteration.
"""

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
"""Tokens without guesses after guesses of one token kept being wrong."""


class Pace:
    """How many tokens to guess for one request, from how its guesses did: deterministic, and its own."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = max(1, most // 2)
        self._resting = 0

    def next(self) -> int:
        if self._resting:
            self._resting -= 1
            return 0
        return self.count

    def update(self, guessed: int, kept: int) -> None:
        """``kept`` of ``guessed`` were right."""
        if kept == guessed:
            self.count = min(self.most, max(self.count, kept) + 1)
        elif kept:
            self.count = kept + 1
        elif self.count > 1:
            self.count //= 2
        else:
            self._resting = REST


def seeded(seed: int, drawn: int) -> random.Random:
    """The numbers of a seed, after the first ``drawn``: every sampled token takes one."""
    rng = random.Random(seed)
    for _ in range(drawn):
        rng.random()
    return rng


@dataclass(eq=False)
class Request:
    """One ``generate`` call.

    ``prompt`` int32 ``[P]``. ``limit`` is how many tokens may be sampled (``max_tokens``, or less where the context
    ends). ``row`` is its row of the cache while it runs. ``reused`` prompt tokens were in the session's own cache,
    ``cached`` include those copied from another session. ``draft`` are guesses that the next step checks. ``matcher``
    and ``counts`` stand behind the last of ``tokens``. ``routes`` int16 ``[n, L, K]`` are those of the first n tokens
    where they have been computed anew since tokens were sampled after them.
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
    reused: int = 0
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cancelled: bool = False
    draft: list[int] = field(default_factory=list)
    pace: Pace | None = None
    matcher: Matcher | None = None
    counts: TokenCounts | None = None
    on_report: OnReport | None = None
    reports: list[TokenReport] = field(default_factory=list)
    routes: NDArray[np.int16] | None = None
    _uniforms: deque[float] = field(default_factory=deque)

    @property
    def total(self) -> int:
        """Prompt tokens plus sampled tokens."""
        return len(self.prompt) + len(self.tokens)

    @property
    def longest(self) -> int:
        """Tokens the sequence can reach."""
        return len(self.prompt) + self.limit

    def uniforms(self, count: int) -> list[float]:
        """Random numbers of the next ``count`` positions; the i-th sampled token always takes the i-th."""
        while len(self._uniforms) < count:
            self._uniforms.append(self.rng.random())
        return list(itertools.islice(self._uniforms, count))

    def allowed(self) -> list[NDArray[np.uint8]]:
        """The tokens that its grammar allows at the next position and after each token of the draft, see ``Matcher``;
        empty where it has none."""
        return [] if self.matcher is None else self.matcher.allowed_after(self.draft)

    def counts_after_draft(self) -> list[Counts]:
        """What its penalties concern at the next position and after each guess; empty where it has none."""
        return [] if self.counts is None else self.counts.after(self.draft)

    def agreeing(self, sampled: Sequence[int]) -> int:
        """How many of the tokens sampled behind one another count: up to the first that was not guessed, a stop token,
        or the limit. ``sampled`` has one token more than ``draft``."""
        for i, token in enumerate(sampled, 1):
            wrong = i <= len(self.draft) and token != self.draft[i - 1]
            if wrong or token in self.stop_ids or len(self.tokens) + i >= self.limit:
                return i
        return len(sampled)

    def accept(self, token: int, logprob: float, version: int, report: TokenReport | None) -> StopReason | None:
        """Append a sampled token; returns why the request is done, or None."""
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


def _settle(results: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, result in results:
        if future.done():  # the caller gave up meanwhile
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


class Outbox:
    """Collects (future, result or exception) and delivers them with ``flush``. Used by the engine's thread only."""

    def __init__(self) -> None:
        self._pending: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}

    def put(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any) -> None:
        self._pending.setdefault(loop, []).append((future, result))

    def flush(self) -> None:
        for loop, results in self._pending.items():
            try:
                loop.call_soon_threadsafe(_settle, results)
            except RuntimeError:  # the caller's loop was closed: nobody is left to tell
                pass
        self._pending.clear()


@dataclass(eq=False)
class Swap:
    """``future`` gets the seconds for which sampling stood still."""

    version: int
    state: Mapping[str, Tensor]
    kv: KvPolicy
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[float]
