"""Rows of tokens as a forest: what several rows begin with is one piece, and the pieces that continue it follow.

Rollouts of one harness begin with the same system message and tool schemas, those of one group with the same task, and
forks with the turns of their root. In a causal decoder the states of these tokens do not depend on later tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .batch import TrainBatch

WORTH = 0.1
"""Minimum share of the positions of rows that a common beginning must save: it costs a GPU one more call of attention,
and a CPU gathers its keys for each piece that follows it."""


@dataclass(frozen=True)
class SortedRows:
    """B rows in an order in which those that begin alike are neighbours.

    ``order`` int64 ``[B]``: places of the rows among those that were given. ``lengths`` int64 ``[B]``: number of
    positions of each, in this order. ``common`` int64 ``[B]``: number of positions in which a row begins like the one
    before it; 0 for the first.
    """

    order: NDArray[np.int64]
    lengths: NDArray[np.int64]
    common: NDArray[np.int64]

    def worth(self, first: int, end: int, start: int, stop: int) -> bool:
        """Return whether to compute positions ``[start, stop)`` of rows ``[first, end)`` once, given that those before
        ``start`` are."""
        return (stop - start) * (end - first - 1) >= WORTH * int((self.lengths[first:end] - start).sum())


def sort_rows(
    batch: TrainBatch, rows: NDArray[np.int64], lengths: NDArray[np.int64], *, routes: bool = True
) -> SortedRows:
    """Sort sequences of a batch (``rows``, indices) by their first ``lengths`` (per sequence of the batch) tokens.

    Rows begin alike where their tokens and, if there are any, the experts to replay are equal; without ``routes``
    tokens alone decide.
    """
    streams: list[NDArray] = [batch.tokens, batch.routes] if routes and batch.routes is not None else [batch.tokens]
    codes, width = [], sum(stream[:1].nbytes for stream in streams)
    for start, length in zip(batch.offsets[rows], lengths[rows]):
        parts = [np.ascontiguousarray(stream[start : start + length]) for stream in streams]
        codes.append(np.concatenate([part.view(np.uint8).reshape(length, -1) for part in parts], 1).tobytes())
    order = sorted(range(len(rows)), key=codes.__getitem__)
    common = [0, *(_common(codes[a], codes[b]) // width for a, b in pairwise(order))]
    return SortedRows(np.array(order, np.int64), lengths[rows][order], np.array(common[: len(order)], np.int64))


def _common(a: bytes, b: bytes) -> int:
    size = min(len(a), len(b))
    differs = np.frombuffer(a, np.uint8, size) != np.frombuffer(b, np.uint8, size)
    return int(differs.argmax()) if differs.any() else size


@dataclass(frozen=True)
class Piece:
    """Positions ``[start, stop)`` of rows ``[first, end)`` of ``SortedRows``; at least one of each. ``parent``: number
    of the piece with the positions before ``start``, smaller than its own; -1 if ``start`` is 0."""

    first: int
    end: int
    start: int
    stop: int
    parent: int


def pieces(rows: SortedRows) -> Iterator[Piece]:
    """Yield pieces that hold each position of each row once, and common beginnings once where that is ``worth`` it."""
    count = 0
    waiting = [(0, len(rows.order), 0, -1)] if len(rows.order) else []
    while waiting:
        first, end, start, parent = waiting.pop()
        alone, parts = end - first == 1, []
        stop = int(rows.lengths[first])
        if not alone:
            common = rows.common[first + 1 : end]
            stop = int(common.min())
            parts = list(pairwise([first, *(first + 1 + np.flatnonzero(common == stop)).tolist(), end]))
        if stop > start and (alone or rows.worth(first, end, start, stop)):
            yield Piece(first, end, start, stop, parent)
            parent, start, count = count, stop, count + 1
        waiting += [(*part, start, parent) for part in reversed(parts)]
