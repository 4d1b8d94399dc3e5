"""A request inside the engine, from submission to delivery. Imports no torch."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from woodshed.engine.protocol import Completion, OnToken, Sampling, StopReason


@dataclass(eq=False)
class Request:
    """One ``generate`` call.

    ``prompt`` int32 ``[P]``. ``limit`` is how many tokens may be sampled (``max_tokens``, or less where the context
    ends). ``row`` is its row of the cache while it runs. ``reused`` prompt tokens were in the session's own cache,
    ``cached`` include those copied from another session.
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

    @property
    def total(self) -> int:
        """Prompt tokens plus sampled tokens."""
        return len(self.prompt) + len(self.tokens)

    @property
    def longest(self) -> int:
        """Tokens the sequence can reach."""
        return len(self.prompt) + self.limit

    def accept(self, token: int, logprob: float, version: int) -> StopReason | None:
        """Append a sampled token; returns why the request is done, or None."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.on_token is not None:
            self.on_token(token, logprob, version)
        if token in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit else None
