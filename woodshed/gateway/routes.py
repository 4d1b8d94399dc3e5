"""Expert routes of a growing segment."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Routes:
    """Expert ids int16 ``[T, L, K]``, -1 where unknown; empty for dense policies.

    Only the first known routes of a token are kept, because the tokens after it were sampled with them; they do not
    change when newer weights recompute the cache.
    """

    def __init__(self) -> None:
        self._ids: NDArray[np.int16] | None = None
        self.stored = 0
        """Number of tokens at the beginning whose routes have not changed since the journal got them."""

    def fill(self, end: int, ids: NDArray[np.int16] | None) -> None:
        """Write ``ids`` ``[n, L, K]`` of the n tokens before ``end``, where routes are still unknown."""
        if ids is None or not len(ids):
            return
        self._grow(end, ids.shape[1:])
        assert self._ids is not None
        view = self._ids[end - len(ids) : end]
        new = (view < 0) & (ids >= 0)
        np.copyto(view, ids, where=new)
        if len(changed := np.flatnonzero(new.any(axis=(1, 2)))):
            self.stored = min(self.stored, end - len(ids) + int(changed[0]))

    def forget(self, start: int) -> None:
        """Mark the routes of all tokens from ``start`` on as unknown."""
        if self._ids is not None:
            self._ids[start:] = -1

    def copy(self, end: int) -> Routes:
        other = Routes()
        if self._ids is not None:
            other._ids = self._ids[:end].copy()
        return other

    def freeze(self, length: int) -> NDArray[np.int16] | None:
        """The first ``length`` rows, or None if there are no routes at all."""
        if self._ids is None:
            return None
        self._grow(length, self._ids.shape[1:])
        return self._ids[:length].copy()

    def rows(self, start: int, end: int) -> NDArray[np.int16] | None:
        """Rows ``[start, end)``; None if there are no routes at all."""
        if self._ids is None:
            return None
        self._grow(end, self._ids.shape[1:])
        return self._ids[start:end]

    def _grow(self, length: int, shape: tuple[int, ...]) -> None:
        have = 0 if self._ids is None else len(self._ids)
        if self._ids is not None and self._ids.shape[1:] != shape:
            raise ValueError(f"routes: shape {shape} where earlier tokens had {self._ids.shape[1:]}")
        if length > have:
            grown = np.full((max(length, 2 * have), *shape), -1, np.int16)
            if self._ids is not None:
                grown[:have] = self._ids
            self._ids = grown
