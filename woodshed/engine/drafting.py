"""Speculative decoding: cheap guesses of the next tokens, which one step of the network then checks together.

Checking samples at every guessed position exactly as it would have sampled there, with the same random number, and
keeps going as long as what it sampled is what was guessed. So a guess decides how many tokens a step yields and never
which ones: tokens, log-probabilities and versions are those of decoding without guesses (Leviathan et al. 2023 accept
by a ratio test instead, which keeps the distribution but not the sample).

Which requests get guesses, and how many. Engine's thread only; imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead

from .attention import CausalMasks, StepAttention
from .cache import RowCache
from .request import Pace, Request
from .settings import EngineSettings

if TYPE_CHECKING:
    pass


class Drafter(Protocol):
    def draft(self, requests: Sequence[Request], count: int) -> list[list[int]]:
        """At most ``count`` guesses for each of ``requests``, whose last token is not in the cache yet."""
        ...


class NgramDrafter:
    """Goes on as the sequence went on where its last tokens stood before (prompt lookup, Saxena 2023). An agent writes
    much that it has just read."""

    def __init__(self, cache: RowCache, longest: int = 4, shortest: int = 2) -> None:
        self.cache, self.longest, self.shortest = cache, longest, shortest

    def draft(self, requests: Sequence[Request], count: int) -> list[list[int]]:
        return [continuation(self.cache.tokens[r.row, : r.total], count, self.longest, self.shortest) for r in requests]


def continuation(tokens_T: NDArray[np.int32], count: int, longest: int, shortest: int) -> list[int]:
    """What followed the latest earlier occurrence of the last ``longest`` (or fewer, to ``shortest``) tokens."""
    total = len(tokens_T)
    for length in range(min(longest, total - 1), shortest - 1, -1):
        ends = np.ones(total - length, np.bool_)  # ends[i]: the run that ends before i + length matches
        for back in range(length):
            ends &= tokens_T[length - 1 - back : total - 1 - back] == tokens_T[total - 1 - back]
        if ends.any():
            after = int(np.flatnonzero(ends)[-1]) + length
            return tokens_T[after : after + count].tolist()
    return []


class MtpDrafter:
    """The policy's own multi-token-prediction head; its keys and values are one more layer of the cache.

    ``last`` ``[R, D]`` is the hidden state of each row's last computed position. ``logits`` makes ``[..., V]`` of it.
    """

    def __init__(
        self,
        decoder: Decoder,
        head: MtpHead,
        cache: RowCache,
        masks: CausalMasks,
        logits: Callable[[Tensor], Tensor],
    ) -> None:
        self.decoder, self.head, self.cache, self.masks, self.logits = decoder, head, cache, masks, logits

    def follow(
        self, attention: StepAttention, tokens: Tensor, positions: Tensor, hidden_ND: Tensor, firsts: list[int]
    ) -> None:
        """Keys and values of the head for a step of the network; ``firsts`` are the first tokens of its rows."""
        first = torch.tensor(firsts, device=hidden_ND.device)
        rows = torch.from_numpy(attention.rows).to(hidden_ND.device)
        before_ND = hidden_ND.roll(1, 0)
        before_ND[first] = self.cache.last[rows[first]]
        self.head.remember(self.decoder, before_ND, tokens, positions, attention.write)

    def draft(self, requests: Sequence[Request], count: int) -> list[list[int]]:
        cache = self.cache
        ordered = sorted(requests, key=lambda r: r.row)
        rows = np.array([r.row for r in ordered], np.int64)
        before_BD = cache.last[torch.from_numpy(rows).to(cache.device)]
        guesses: list[list[int]] = []
        try:
            for _ in range(count):
                attention = StepAttention(cache, self.decoder.config.num_heads, rows, [], self.masks)
                tokens = torch.from_numpy(cache.tokens[rows, cache.lengths[rows]].astype(np.int64)).to(cache.device)
                positions = torch.from_numpy(attention.positions).to(cache.device)
                before_BD = self.head(self.decoder, before_BD, tokens, positions, attention)
                guesses.append(self.logits(before_BD).argmax(-1).tolist())
                cache.lengths[rows] += 1
                if len(guesses) < count:
                    cache.tokens[rows, cache.lengths[rows]] = guesses[-1]
        finally:
            cache.lengths[rows] -= len(guesses)
        of_row = dict(zip(rows.tolist(), map(list, zip(*guesses))))
        return [of_row[request.row] for request in requests]


class Speculation:
    """Asks the drafter before a step and learns from what the step kept. Counts both."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.drafted = self.accepted = 0

    def prepare(self, running: Sequence[Request], cache: RowCache, drafter: Drafter | None) -> None:
        """Drafts for the requests that decode, where the batch is small enough for guessing to pay."""
        if drafter is None or len(running) > self.settings.speculate_running:
            return
        wanted: dict[int, list[Request]] = {}
        for request in running:
            if request.started and request.total - int(cache.lengths[request.row]) == 1:
                request.pace = request.pace or Pace(self.settings.draft_tokens)
                count = min(request.pace.next(), request.limit - len(request.tokens) - 1)
                if count > 0:
                    wanted.setdefault(count, []).append(request)
        for count, requests in wanted.items():
            for request, draft in zip(requests, drafter.draft(requests, count)):
                request.draft = draft if request.matcher is None else draft[: request.matcher.fitting(draft)]

    def update(self, request: Request, kept: int) -> None:
        """``kept`` tokens of the request's draft were right; the draft is used up."""
        if request.draft and request.pace is not None:
            request.pace.update(len(request.draft), kept)
            self.drafted += len(request.draft)
            self.accepted += kept
            request.draft = []
