"""The key/value cache: one row per session, kept between the turns of a trajectory.

The layout is ``[layer, row, kv head, length, head dim]``, so that a run of rows is one strided batch for a matrix
product, without a copy. On a CPU this is worth more than the memory that smaller pages would save.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from woodshed.policy.decoder import Decoder
from woodshed.policy.processor import zeros

from .settings import EngineSettings


class RowCache:
    """Rows of keys and values with the tokens they belong to.

    ``tokens`` int32 ``[R, T]`` holds each row's sequence; keys and values of its first ``lengths[row]`` tokens are
    computed. ``oldest[row]`` is the oldest policy version that computed any of them. ``routes`` int16 ``[R, T, L, K]``
    (-1 where unknown) exists for mixtures of experts only and covers the first ``layers``; completions of the row's
    session have returned those of its first ``returned[row]`` tokens. ``extra_layers`` hold only keys and values.
    ``last`` ``[R, width]`` is the hidden state of each row's last computed position, if ``width`` is given. ``left`` is
    True while a row holds what a session computed that has ended since.
    Engine's thread only.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        budget: int,
        max_rows: int,
        step: int,
        experts_per_token: int = 0,
        extra_layers: int = 0,
        width: int = 0,
    ) -> None:
        self.routed_layers, self.layers = layers, layers + extra_layers
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.dtype, self.device, self.step = dtype, device, step
        self.budget, self.max_rows, self.experts = budget, max_rows, experts_per_token
        self.token_bytes = self.layers * kv_heads * 2 * head_dim * dtype.itemsize
        self.rows = self.length = 0
        self.tokens: NDArray[np.int32] = np.zeros((0, 0), np.int32)
        self.lengths: NDArray[np.int64] = np.zeros(0, np.int64)
        self.oldest: NDArray[np.int64] = np.zeros(0, np.int64)
        self.returned: NDArray[np.int64] = np.zeros(0, np.int64)
        self.busy: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.left: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.routes: NDArray[np.int16] | None = None
        self.owner: list[str | None] = []
        self.sessions: dict[str, int] = {}
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        nothing = torch.zeros((0, kv_heads, 0, head_dim), dtype=dtype, device=device)
        self._room = {"keys": [nothing] * self.layers, "values": [nothing] * self.layers}
        self.last = torch.zeros((0, width), dtype=dtype, device=device)
        self.evictions = 0
        self.moved: dict[int, int] = {}
        self._used: NDArray[np.int64] = np.zeros(0, np.int64)
        self._clock = 0

    @classmethod
    def of(cls, decoder: Decoder, settings: EngineSettings, *, context: int, mtp: bool) -> RowCache:
        """Create an empty cache for a decoder; with ``mtp`` also for its MTP head, which needs one more layer and the
        last hidden states."""
        config = decoder.config
        return cls(
            layers=config.num_layers,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=decoder.dtype,
            device=decoder.device,
            budget=settings.cache_bytes,
            max_rows=max(settings.max_sessions, 1),
            step=min(settings.length_step, context),
            experts_per_token=config.num_experts_per_tok if config.num_experts else 0,
            extra_layers=int(mtp),
            width=config.d_model if mtp else 0,
        )

    def rows_within(self, length: int) -> int:
        """Number of rows of ``length`` tokens that fit the budget."""
        rounded = -(-length // self.step) * self.step
        return min(self.max_rows, self.budget // (rounded * self.token_bytes))

    def acquire(self, session: str | None, length: int) -> int | None:
        """Return a row for a sequence of at most ``length`` tokens, marked busy; None if only busy rows are left.

        A session gets its own row back with its contents. If that row is busy (two concurrent requests of one
        session), the second request gets an anonymous row. Another row may hold what an ended session ``left``.
        """
        own = self.sessions.get(session) if session is not None else None
        if own is not None and self.busy[own]:
            session = own = None
        if length > self.length and not self._grow_length(length, own):
            return None
        own = self.sessions.get(session) if session is not None else None  # rows may have moved
        row = own if own is not None else self._free_row()
        if row is None:
            return None
        self.busy[row] = True
        if own is None:
            self.returned[row] = 0
            if not self.left[row]:
                self.lengths[row] = 0
            self.owner[row] = session
            if session is not None:
                self.sessions[session] = row
        return row

    def release(self, row: int) -> None:
        """Mark a row as idle; a session's row keeps its contents until it is evicted."""
        self.busy[row] = False
        self._clock += 1
        self._used[row] = self._clock
        if self.owner[row] is None:
            self.lengths[row] = 0

    def leave(self, row: int) -> None:
        """End the session of a row. Its contents can be shared until another session takes the row."""
        session = self.owner[row]
        if session is not None:
            del self.sessions[session]
        self.owner[row] = None
        self.left[row] = True

    def drop(self, row: int) -> None:
        """End the session of a row and forget its contents."""
        self.leave(row)
        self.left[row] = False
        self.lengths[row] = 0

    def scrub(self, row: int) -> None:
        """Zero a row, so that non-finite values in it cannot reach a later request through masked positions."""
        for buffer in (*self.keys, *self.values, self.last):
            buffer[row].zero_()

    def truncate(self, row: int, length: int) -> None:
        self.lengths[row] = min(int(self.lengths[row]), length)

    def common_prefixes(self, tokens: NDArray[np.int32]) -> NDArray[np.int64]:
        """Length of the common prefix of ``tokens`` with each row's sequence, computed or not: int64 ``[R]``."""
        n = min(len(tokens), self.length)
        differs = self.tokens[:, :n] != tokens[:n]
        first = differs.argmax(axis=1) if n else np.zeros(self.rows, np.int64)
        return np.where(differs.any(axis=1), first, n)

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copy keys, values and routes of the first ``length`` tokens from one row to another."""
        for buffer in (*self.keys, *self.values):
            buffer[target, :, :length].copy_(buffer[source, :, :length])
        if self.routes is not None:
            self.routes[target, :length] = self.routes[source, :length]
        self.lengths[target] = length
        self.oldest[target] = self.oldest[source]

    def cached_tokens(self) -> int:
        return int(self.lengths.sum())

    def _free_row(self) -> int | None:
        free = [row for row in range(self.rows) if not self.busy[row] and self.owner[row] is None]
        if free:  # those without contents first, then those that were left first
            return min(free, key=lambda row: self._used[row] if self.left[row] else -1)
        wanted = min(max(8, 2 * self.rows), self.rows_within(self.length))
        if wanted > self.rows:
            first = self.rows
            self._reallocate(wanted, self.length, list(range(self.rows)))
            return first
        idle = np.flatnonzero(~self.busy)
        if not len(idle):
            return None
        row = int(idle[self._used[idle].argmin()])
        self.drop(row)
        self.evictions += 1
        return row

    def _grow_length(self, length: int, keep_row: int | None) -> bool:
        """Make rows at least ``length`` long, evicting idle ones if the budget requires it."""
        length = -(-length // self.step) * self.step
        allowed = self.rows_within(length)
        used = [row for row in range(self.rows) if self.busy[row] or self.owner[row] is not None]
        must = [row for row in used if self.busy[row] or row == keep_row]
        if len(must) + (keep_row is None) > allowed:
            return False
        room = allowed - (keep_row is None)
        idle = sorted((row for row in used if row not in must), key=lambda row: -self._used[row])
        kept = sorted(must + idle[: max(0, room - len(must))])
        for row in set(used) - set(kept):
            self.drop(row)
            self.evictions += 1
        if self.rows <= allowed:
            self._reallocate(max(self.rows, 1), length, list(range(self.rows)))
        else:
            self._reallocate(allowed, length, kept)
        return True

    def _reallocate(self, rows: int, length: int, kept: list[int]) -> None:
        """Reallocate so that row i holds the former row ``kept[i]``. Sets ``moved`` (old row -> new row)."""
        old_length = self.length
        for name, room in self._room.items():
            setattr(self, name, [])
            if length != old_length or kept != list(range(self.rows)) or rows > min(map(len, room)):
                self._new_room(room, rows, length, kept)
            setattr(self, name, [buffer[:rows] for buffer in room])
        last = torch.zeros((rows, self.last.shape[1]), dtype=self.dtype, device=self.device)
        last[: len(kept)] = self.last[kept]
        self.last = last
        tokens = np.zeros((rows, length), np.int32)
        tokens[: len(kept), :old_length] = self.tokens[kept]
        if self.experts:
            routes = np.full((rows, length, self.routed_layers, self.experts), -1, np.int16)
            if self.routes is not None:
                routes[: len(kept), :old_length] = self.routes[kept]
            self.routes = routes
        for name in ("lengths", "oldest", "returned", "busy", "left", "_used"):
            values = np.zeros(rows, getattr(self, name).dtype)
            values[: len(kept)] = getattr(self, name)[kept]
            setattr(self, name, values)
        self.owner = [self.owner[row] for row in kept] + [None] * (rows - len(kept))
        self.sessions = {name: row for row, name in enumerate(self.owner) if name is not None}
        self.tokens, self.rows, self.length = tokens, rows, length
        self.moved = {old_row: row for row, old_row in enumerate(kept)}

    def _new_room(self, room: list[Tensor], rows: int, length: int, kept: list[int]) -> None:
        computed = int(self.lengths[kept].max(initial=0))
        held = slice(len(kept)) if kept == list(range(len(kept))) else kept
        for layer, old in enumerate(room):  # layer by layer, so that only one layer exists twice at a time
            new = self._reserve(rows, length)
            if computed:
                new[: len(kept), :, :computed] = old[held, :, :computed]
            room[layer] = new

    def _reserve(self, rows: int, length: int) -> Tensor:
        """Allocate at least ``rows`` rows of zeros: masked positions are multiplied by probability 0 and must be
        finite. On a CPU, allocate the maximum number for this length; memory is only committed when it is written."""
        shape = self.kv_heads, length, self.head_dim
        if self.device.type == "cpu":
            with suppress(OSError):  # the address space of this process may be limited
                return zeros((self.rows_within(length), *shape), self.dtype)
        return zeros((rows, *shape), self.dtype, self.device)
