"""Speculative decoding: a drafter proposes the next tokens cheaply, and one step of the network verifies them together.

Verification samples at every drafted position exactly as decoding would have sampled there, with the same random
number, and stops at the first token that differs from the draft. A draft therefore decides how many tokens a step
yields, never which ones: tokens, log-probabilities and versions equal those of decoding without drafts. (Leviathan et
al. 2023 accept by a ratio test instead, which preserves the distribution but not the sample.) Engine's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.mtp import MtpHead

from .attention import CausalMasks, StepAttention
from .cache import RowCache
from .request import DraftLength, Request
from .settings import EngineSettings


def draft_head(head: MtpHead | None, decoder: Decoder, settings: EngineSettings) -> MtpHead | None:
    """Return the policy's MTP head on the decoder's device and in its dtype; None if the settings do not use it.
    Raises ValueError if they require a head and there is none."""
    if settings.speculate == "mtp" and head is None:
        raise ValueError("engine.speculate is 'mtp', but the policy has no MTP head (mtp.safetensors)")
    if settings.speculate not in ("auto", "mtp") or head is None:
        return None
    return head.requires_grad_(False).to(device=decoder.device, dtype=decoder.dtype)


class Drafter(Protocol):
    def draft(self, requests: Sequence[Request], count: int) -> list[list[int]]:
        """Propose at most ``count`` tokens for each of ``requests``, whose last token is not in the cache yet."""
        ...


class NgramDrafter:
    """Proposes what followed an earlier occurrence of the sequence's last tokens (prompt lookup, Saxena 2023). Works
    well for agents, which often write what they have just read."""

    def __init__(self, cache: RowCache, longest: int = 4, shortest: int = 2) -> None:
        self.cache, self.longest, self.shortest = cache, longest, shortest

    def draft(self, requests: Sequence[Request], count: int) -> list[list[int]]:
        return [continuation(self.cache.tokens[r.row, : r.total], count, self.longest, self.shortest) for r in requests]


def continuation(tokens_T: NDArray[np.int32], count: int, longest: int, shortest: int) -> list[int]:
    """Return at most ``count`` tokens that followed the latest earlier occurrence of the last ``longest`` tokens, or
    else of fewer, down to ``shortest``; empty if none occurred earlier."""
    total = len(tokens_T)
    for length in range(min(longest, total - 1), shortest - 1, -1):
        ends = np.ones(total - length, np.bool_)  # ends[i]: the `length` tokens before i + length match
        for back in range(length):
            ends &= tokens_T[length - 1 - back : total - 1 - back] == tokens_T[total - 1 - back]
        if ends.any():
            after = int(np.flatnonzero(ends)[-1]) + length
            return tokens_T[after : after + count].tolist()
    return []


class MtpDrafter:
    """Drafts with the policy's multi-token-prediction (MTP) head; its keys and values are one more layer of the cache.

    ``logits`` maps hidden states ``[..., D]`` to ``[..., V]``.
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
        """Write the head's keys and values for a step of the network. ``firsts`` are the indices in the step of each
        row's first token."""
        first = torch.tensor(firsts, device=hidden_ND.device)
        rows = torch.from_numpy(attention.rows).to(hidden_ND.device)
        before_ND = hidden_ND.roll(1, 0)
        before_ND[first] = self.cache.last[rows[first]]
        before_ND.masked_fill_(positions[:, None] == 0, 0.0)  # a new row still has the last state of an earlier request
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
    """Decides which requests get drafts and how long they are, and counts drafted and accepted tokens."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.drafted = self.accepted = 0

    def prepare(self, running: Sequence[Request], cache: RowCache, drafter: Drafter | None) -> None:
        """Draft for the decoding requests, if the batch is small enough for speculation to pay."""
        if drafter is None or len(running) > self.settings.speculate_running:
            return
        wanted: dict[int, list[Request]] = {}
        for request in running:
            if request.started and request.total - int(cache.lengths[request.row]) == 1:
                request.draft_length = request.draft_length or DraftLength(self.settings.draft_tokens)
                count = min(request.draft_length.next(), request.limit - len(request.tokens) - 1)
                if count > 0:
                    wanted.setdefault(count, []).append(request)
        for count, requests in wanted.items():
            for request, draft in zip(requests, drafter.draft(requests, count)):
                request.draft = draft if request.matcher is None else draft[: request.matcher.fitting(draft)]

    def update(self, request: Request, kept: int) -> None:
        """Record that ``kept`` tokens of the request's draft were accepted, and clear the draft."""
        if request.draft and request.draft_length is not None:
            request.draft_length.update(len(request.draft), kept)
            self.drafted += len(request.draft)
            self.accepted += kept
            request.draft = []
