"""Budgets of an evaluation. Policies get equal shares, so that the last one is evaluated too."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory


class CountingStore(TrajectoryStore):
    """A store that counts the tokens of its evaluation episodes: sampled and context tokens, each once."""

    tokens = 0

    def count_stored(self) -> None:
        """Count the tokens of the episodes that earlier starts stored."""
        self.tokens = sum(_tokens(row["effort"]) for row in self.rows("source = 'eval'"))

    def add(self, trajectory: Trajectory) -> bool:
        added = super().add(trajectory)
        if added:
            self.tokens += _tokens(vars(trajectory.effort))
        return added


def _tokens(effort: dict[str, int]) -> int:
    return effort["sampled_tokens"] + effort["prompt_tokens"] + effort["tool_output_tokens"]


@dataclass
class Budget:
    """Limits ``max_tokens`` for the whole evaluation and ``max_minutes`` for this start; None: no limit.

    A running episode is always finished, so the limit may be exceeded by the tokens of up to ``jobs`` episodes.
    """

    store: CountingStore
    max_tokens: int | None = None
    max_minutes: float | None = None
    spent: list[str] = field(default_factory=list)
    """Messages about parts that a budget ended."""
    _started: float = field(default_factory=time.monotonic)
    _tokens_until: float | None = None
    _until: float | None = None
    _part: str = ""

    def begin(self, part: str, left: int) -> None:
        """Begin the part called ``part``. It gets 1 / ``left`` of the rest of each budget: ``left`` parts remain,
        including this one."""
        self._part = part
        if self.max_tokens is not None:
            self._tokens_until = self.store.tokens + max(0, self.max_tokens - self.store.tokens) / left
        if self.max_minutes is not None:
            now = time.monotonic()
            self._until = now + max(0.0, self._started + 60 * self.max_minutes - now) / left

    def may_start(self) -> bool:
        """Return whether a further episode may begin; if not, add a message to ``spent``."""
        over = ""
        if self._tokens_until is not None and self.store.tokens >= self._tokens_until:
            over = f"{self._part}: its share of --max-tokens-total {self.max_tokens} is used up"
        elif self._until is not None and time.monotonic() >= self._until:
            over = f"{self._part}: its share of --max-minutes {self.max_minutes:g} is over"
        if over and over not in self.spent:
            self.spent.append(over)
        return not over
