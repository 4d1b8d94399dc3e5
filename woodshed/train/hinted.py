"""The sequences that the teacher of ``hint_kl`` reads: context, hint, marked message.

The student sampled a message in its context. The teacher scores the tokens of this message after the same context with
a hint just before the message (Composer 2.5: targeted textual feedback). So a batch carries one more sequence for each
marked message. Nothing is sampled again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class HintedMessage:
    """Tokens ``[start, end)`` of a sequence. ``context``: int32 tokens that the teacher reads before them, at least
    one."""

    start: int
    end: int
    context: NDArray[np.int32]


@dataclass(frozen=True)
class Hinted:
    """The teacher's F sequences of a batch, one after the other.

    ``tokens`` int32 ``[Q]``; ``lengths`` int32 ``[F]``; ``targets`` int32 ``[F]``: length of the message at the end of
    each sequence; ``at`` int64 ``[F]``: index in the batch's tokens at which that message begins.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    targets: NDArray[np.int32]
    at: NDArray[np.int64]

    FIELDS: ClassVar[tuple[str, ...]] = ("tokens", "lengths", "targets", "at")

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def ends(self) -> NDArray[np.int64]:
        """int64 ``[F]``: sequence f ends before ``tokens[ends[f]]``."""
        return np.cumsum(self.lengths, dtype=np.int64)

    def own_targets(self) -> NDArray[np.int64]:
        """Return int64 ``[H]``: indices into ``tokens`` of all tokens of messages."""
        return _ranges(self.ends - self.targets, self.targets)

    def batch_targets(self) -> NDArray[np.int64]:
        """Return int64 ``[H]``: indices of the same tokens in the batch."""
        return _ranges(self.at, self.targets)

    def problem(self, tokens_N: NDArray[np.int32], offsets: NDArray[np.int64]) -> str | None:
        """Return what does not match a batch with these tokens and sequence ``offsets``; None if all does."""
        if not len(self.lengths) == len(self.targets) == len(self.at):
            return f"hinted: {len(self.lengths)} lengths, {len(self.targets)} targets and {len(self.at)} places"
        if int(self.lengths.sum()) != len(self.tokens):
            return f"hinted: lengths sum to {int(self.lengths.sum())}, tokens has {len(self.tokens)}"
        if np.any(self.targets < 1) or np.any(self.targets >= self.lengths):
            return "hinted: a sequence has no message, or nothing before it"
        if np.any(self.at < 0) or np.any(self.at + self.targets > len(tokens_N)):
            return "hinted: a message is not within the batch"
        first, last = (np.searchsorted(offsets, x, side="right") for x in (self.at, self.at + self.targets - 1))
        if np.any(first != last):
            return "hinted: a message is not within one sequence"
        batch_H = self.batch_targets()
        if len(np.unique(batch_H)) != len(batch_H):
            return "hinted: two messages share tokens"
        if not np.array_equal(tokens_N[batch_H], self.tokens[self.own_targets()]):
            return "hinted: the teacher would score other tokens than those of the message"
        return None


def pack_hinted(rows: Iterable[tuple[NDArray[np.int32], Iterable[HintedMessage]]]) -> Hinted | None:
    """Return the teacher's sequences for packed ``rows``, (tokens, marked messages); None if nothing is marked."""
    pieces: list[NDArray[np.int32]] = []
    lengths, targets, at, offset = [], [], [], 0
    for tokens, messages in rows:
        for message in messages:
            pieces += [message.context, tokens[message.start : message.end]]
            targets.append(message.end - message.start)
            lengths.append(len(message.context) + targets[-1])
            at.append(offset + message.start)
        offset += len(tokens)
    if not pieces:
        return None
    return Hinted(
        np.concatenate(pieces).astype(np.int32),
        np.array(lengths, np.int32),
        np.array(targets, np.int32),
        np.array(at, np.int64),
    )


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int32]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(a, a + n) for a, n in zip(starts, counts)] or [np.zeros(0, np.int64)])
