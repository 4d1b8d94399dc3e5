"""How far to guess ahead. Imports no torch."""

from __future__ import annotations

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

    def saw(self, guessed: int, kept: int) -> None:
        """``kept`` of ``guessed`` were right."""
        if kept == guessed:
            self.count = min(self.most, max(self.count, kept) + 1)
        elif kept:
            self.count = kept + 1
        elif self.count > 1:
            self.count //= 2
        else:
            self._resting = REST
