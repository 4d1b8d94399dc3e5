"""Which sequences go together: micro-batches under a token budget, ranks under a cost balance."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def micro_batches(lengths: Sequence[int] | NDArray, budget: int) -> list[NDArray[np.int64]]:
    """Split rows into groups whose padded size (rows x longest) stays within ``budget`` tokens, longest first.

    Sorting by length keeps padding small. A row longer than the budget gets a group of its own. Every row with a
    length above 0 appears exactly once; rows of length 0 are left out.
    """
    lengths = np.asarray(lengths)
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    groups: list[NDArray[np.int64]] = []
    at = 0
    while at < len(order):
        rows = max(1, budget // int(lengths[order[at]]))
        groups.append(order[at : at + rows])
        at += rows
    return groups


def sequence_cost(lengths: Sequence[int] | NDArray, d_model: int) -> NDArray[np.float64]:
    """Relative cost of each sequence, ``T * (1 + T / (12 d_model))``.

    Per layer and token the matrices take about 24 d^2 operations and causal attention 2 T d (Kaplan et al. 2020,
    table 1, with half the keys visible on average).
    """
    t = np.asarray(lengths, np.float64)
    return t * (1 + t / (12 * d_model))


def balance(costs: Sequence[float] | NDArray, ranks: int) -> list[list[int]]:
    """Assign items to ranks so that the largest load is small: longest processing time first (Graham 1969).

    The largest load is at most ``mean + (1 - 1 / ranks) * max(costs)`` and 4/3 of the best possible. Within a rank,
    items keep falling cost.
    """
    if ranks < 1:
        raise ValueError("balance: ranks must be at least 1")
    costs = np.asarray(costs, np.float64)
    plan: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for item in np.argsort(-costs, kind="stable"):
        load, rank = heapq.heappop(loads)
        plan[rank].append(int(item))
        heapq.heappush(loads, (load + float(costs[item]), rank))
    return plan
