"""Micro-batches under a token budget: rows that begin alike together, else rows of about the same length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .batch import TrainBatch
from .forest import sort_rows


def micro_batches(batch: TrainBatch, lengths: NDArray[np.int64], budget: int) -> list[NDArray[np.int64]]:
    """Split the sequences of a batch into groups whose padded size (rows x longest) stays within ``budget`` tokens.

    ``lengths``: number of tokens of each sequence that the forward pass needs. Neighbours in sorted order are joined
    first, those with the longest common beginning before all others, as long as they fit. A row longer than the budget
    gets a group of its own. Every row with a length above 0 appears exactly once; rows of length 0 are left out.
    """
    rows = np.flatnonzero(lengths)
    # By tokens alone: the experts of a whole batch may be gigabytes, and where they differ only less is shared.
    found = sort_rows(batch, rows, lengths, routes=False)
    # A run is a range of neighbours; its end is known at its first row, its first row at its end.
    firsts, ends = np.arange(len(rows)), np.arange(1, len(rows) + 1)
    for right in 1 + np.argsort(-found.common[1:], kind="stable"):
        if not found.worth(right - 1, right + 1, 0, found.common[right]):
            continue
        first, end = firsts[right - 1], ends[right]
        if (end - first) * found.lengths[first:end].max() <= budget:
            firsts[end - 1], ends[first] = first, end
    runs, first = [], 0
    while first < len(rows):
        runs.append(np.arange(first, ends[first]))
        first = ends[first]
    return [rows[found.order[group]] for group in _join(runs, found.lengths, found.common, budget)]


def by_length(lengths: Sequence[int] | NDArray, budget: int) -> list[NDArray[np.int64]]:
    """Split rows into groups as ``micro_batches`` does, but by their lengths alone, which keeps padding small."""
    lengths = np.asarray(lengths)
    rows = np.flatnonzero(lengths)
    groups = _join(list(np.arange(len(rows))[:, None]), lengths[rows], np.zeros(len(rows), np.int64), budget)
    return [rows[group] for group in groups]


def _join(runs: Sequence[NDArray[np.int64]], lengths: NDArray, common: NDArray, budget: int) -> list[NDArray[np.int64]]:
    """Join runs of neighbours, the one with the longest row first, each to the group within the budget with which it
    has most in common."""
    groups: list[list[NDArray[np.int64]]] = []
    waiting: list[tuple[int, int, list[NDArray[np.int64]]]] = []  # number of rows, longest row, runs
    for longest, run in sorted(((int(lengths[run].max()), run) for run in runs), key=lambda pair: -pair[0]):
        fitting = [i for i, (rows, widest, _) in enumerate(waiting) if (rows + len(run)) * widest <= budget]
        if fitting:
            at = max(fitting, key=lambda i: max(_between(other, run, common) for other in waiting[i][2]))
            rows, longest, group = waiting.pop(at)
            group.append(run)
        else:
            rows, group = 0, [run]
            groups.append(group)
        if (rows + len(run) + 1) * longest <= budget:
            waiting.append((rows + len(run), longest, group))
    return [np.concatenate(group) for group in groups]


def _between(a: NDArray[np.int64], b: NDArray[np.int64], common: NDArray) -> int:
    """Return the number of positions in which two runs begin alike."""
    low, high = (a, b) if a[0] < b[0] else (b, a)
    return int(common[low[-1] + 1 : high[0] + 1].min())
