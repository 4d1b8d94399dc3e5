"""Which sequences go together: micro-batches under a token budget."""

from __future__ import annotations

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
