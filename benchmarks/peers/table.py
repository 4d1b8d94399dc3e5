"""Prefill and decoding rates of every peer over batch sizes: same prompts, same lengths, turn and turn about."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from peers.policies import Load, prompts

BATCHES = (1, 8, 32)


@dataclass
class Reply:
    """Sampled tokens, with their log-probabilities where the peer tells them."""

    tokens: list[int]
    logprobs: list[float] | None


class Peer(Protocol):
    async def sample(self, asks: list[list[int]], tokens: int) -> list[Reply]:
        """Exactly ``tokens`` tokens at temperature 1 after each prompt, all prompts at once."""


async def timed(peer: Peer, asks: list[list[int]], tokens: int) -> tuple[float, list[Reply]]:
    """Wall-clock seconds of ``sample``. Raises RuntimeError where it gave too little to be compared."""
    began = time.perf_counter()
    replies = await peer.sample(asks, tokens)
    seconds = time.perf_counter() - began
    lengths = {len(reply.tokens) for reply in replies}
    if len(replies) != len(asks) or lengths != {tokens}:
        raise RuntimeError(f"asked {len(asks)} times for {tokens} tokens, got {len(replies)} replies of {lengths}")
    return seconds, replies


async def table(
    peers: Mapping[str, Peer], load: Load, vocabulary: int, batches: Sequence[int] = BATCHES
) -> tuple[dict[str, Any], dict[str, list[tuple[list[int], Reply]]]]:
    """Tokens per second by peer and batch, and (prompt, reply) of a batch of eight for comparison.

    A round samples one token after new prompts (that is the prefill), then ``1 + table_output`` after other ones; what
    the second took longer is the decoding. Rates are of medians over the rounds.
    """
    rates: dict[str, Any] = {name: {} for name in peers}
    seen: dict[str, list[tuple[list[int], Reply]]] = {}
    for batch, rounds in zip(batches, load.rounds, strict=True):
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
        for peer in peers.values():  # untimed
            await timed(peer, prompts(batch, 8, vocabulary, 1000 + batch), 2)
        for turn in range(rounds):
            for name, peer in peers.items():
                print(f"table, batch {batch}, round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                asks = prompts(batch, load.table_prompt, vocabulary, 2000 + 10 * turn + batch)
                prefill, _ = await timed(peer, asks, 1)
                asks = prompts(batch, load.table_prompt, vocabulary, 5000 + 10 * turn + batch)
                both, replies = await timed(peer, asks, 1 + load.table_output)
                seconds[name].append((prefill, both))
                if batch == 8:
                    seen[name] = list(zip(asks, replies))
        for name, times in seconds.items():
            prefill = statistics.median(t for t, _ in times)
            decode = statistics.median(t for _, t in times) - prefill
            rates[name][str(batch)] = {
                "prefill_tokens_per_s": round(batch * load.table_prompt / prefill),
                "decode_tokens_per_s": round(batch * load.table_output / decode) if decode > 0 else None,
                "seconds": [[round(t, 3) for t in pair] for pair in times],
            }
    return rates, seen
