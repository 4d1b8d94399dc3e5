"""Presence, frequency and repetition penalties: tokens that were there before become less (or more) likely.

Of the logit x of a token that was generated c times before:

- repetition (Keskar et al. 2019, section 4.1): x / r where x > 0, else x * r; tokens of the prompt count too;
- frequency and presence (OpenAI's definition): x - c * frequency - (c > 0) * presence.

In this order, after grammar and bias and before temperature, as in vLLM. Imports no torch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .protocol import Sampling

Counts = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Token ids, each once, and how often each was generated."""
Penalised = Sequence[tuple[int, Counts]]
"""(row, the tokens that its penalties concern)."""


class TokenCounts:
    """The tokens of one request that penalties concern. ``generated`` are those sampled before it went on here."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], generated: Sequence[int]) -> None:
        seen = dict.fromkeys(prompt) if sampling.repetition_penalty != 1 else {}
        self._at = {token: i for i, token in enumerate(seen)}
        self._ids = array("q", seen)
        self._counts = array("f", bytes(4 * len(seen)))
        for token in generated:
            self.add(token)

    def add(self, token: int) -> None:
        """One more was generated."""
        at = self._at.setdefault(token, len(self._ids))
        if at == len(self._ids):
            self._ids.append(token)
            self._counts.append(0.0)
        self._counts[at] += 1

    def after(self, draft: Sequence[int]) -> list[Counts]:
        """The counts now and after each token of ``draft``; nothing has been added afterwards."""
        known = len(self._ids)
        out = [self._now()]
        for token in draft:
            self.add(token)
            out.append(self._now())
        for token in draft:
            self._counts[self._at[token]] -= 1
        for token in self._ids[known:]:
            del self._at[token]
        del self._ids[known:], self._counts[known:]
        return out

    def _now(self) -> Counts:
        return np.array(self._ids, np.int64), np.array(self._counts, np.float32)
