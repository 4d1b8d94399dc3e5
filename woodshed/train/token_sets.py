"""Token sets that tokens were sampled from, each stored once: as bits or, if that is shorter, as a list of ids.

Grammars allow a large part of the vocabulary or a few tokens; top-p of a trained policy keeps one to ten. With a
vocabulary of 150,000, bits take 19 KB per set and ten ids 40 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenSets:
    """K sets as bits and J sets as ids. Sets are numbered: first those of ``bits``, then those of ``ids``.

    ``bits`` uint8 ``[K, W]``, little endian; ``ids`` int32 ``[M]``, ascending within a set; ``ends`` int64 ``[J]``: set
    K + j has ``ids[ends[j - 1] : ends[j]]``.
    """

    bits: NDArray[np.uint8]
    ids: NDArray[np.int32]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.bits) + len(self.ends)

    def problem(self) -> str | None:
        """Return a description of the inconsistency, None if there is none."""
        if self.bits.ndim != 2 or self.ids.ndim != 1 or self.ends.ndim != 1:
            return f"bits {list(self.bits.shape)}, ids {list(self.ids.shape)} and ends {list(self.ends.shape)}"
        bounds = np.concatenate(([0], self.ends))
        if (np.diff(bounds) < 1).any() or bounds[-1] != len(self.ids):
            return f"ends do not divide {len(self.ids)} ids into sets"
        return None

    def contains(self, numbers: NDArray[np.integer], tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return bool ``[n]``: whether each of ``tokens`` ``[n]`` is in the set numbered by ``numbers`` ``[n]``."""
        found = np.zeros(len(tokens), np.bool_)
        as_bits = np.flatnonzero(numbers < len(self.bits))
        fits = as_bits[tokens[as_bits] >> 3 < self.bits.shape[1]]
        found[fits] = self.bits[numbers[fits], tokens[fits] >> 3] >> (tokens[fits] & 7) & 1
        if len(self.ends):
            # (set, id) pairs are ascending, so one search finds all
            sizes = np.diff(np.concatenate(([0], self.ends)))
            pairs = (np.repeat(np.arange(len(self.ends)), sizes) << 32) | self.ids
            listed = np.flatnonzero(numbers >= len(self.bits))
            wanted = ((numbers[listed].astype(np.int64) - len(self.bits)) << 32) | tokens[listed]
            at = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
            found[listed] = pairs[at] == wanted
        return found

    def of(self, number: int) -> NDArray[np.int64]:
        """Return the ids of one set, ascending."""
        if number < len(self.bits):
            return np.flatnonzero(np.unpackbits(self.bits[number], bitorder="little"))
        bounds = np.concatenate(([0], self.ends))
        listed = number - len(self.bits)
        return self.ids[bounds[listed] : bounds[listed + 1]].astype(np.int64)


class SetTable:
    """Collects sets, storing equal ones once. ``add_bits`` and ``add_ids`` return temporary numbers for ``build``."""

    def __init__(self) -> None:
        self._bits: dict[bytes, int] = {}
        self._lists: dict[bytes, int] = {}

    def add_bits(self, bits: NDArray[np.uint8]) -> int:
        """Add a set as bits ``[W]``, little endian. The number is 0 or more."""
        return self._bits.setdefault(bits.tobytes(), len(self._bits))

    def add_ids(self, ids: NDArray[np.integer]) -> int:
        """Add a set as ids, ascending; stored as bits if that is shorter. Numbers of lists are -2 or less."""
        width = (int(ids[-1]) >> 3) + 1
        if 4 * len(ids) <= width:
            return -2 - self._lists.setdefault(ids.astype(np.int32).tobytes(), len(self._lists))
        mask = np.zeros(8 * width, np.bool_)
        mask[ids] = True
        return self.add_bits(np.packbits(mask, bitorder="little"))

    def build(self, numbers_T: NDArray[np.int32]) -> tuple[TokenSets, NDArray[np.int32]]:
        """Return the sets, and ``numbers_T`` with temporary numbers replaced by final ones; -1 stays."""
        width = max(map(len, self._bits), default=0)
        rows = [np.frombuffer(bits.ljust(width, b"\0"), np.uint8) for bits in self._bits]
        bits = np.stack(rows) if rows else np.zeros((0, width), np.uint8)
        lists = [np.frombuffer(data, np.int32) for data in self._lists]
        ids = np.concatenate(lists) if lists else np.zeros(0, np.int32)
        sets = TokenSets(bits, ids, np.cumsum([len(part) for part in lists], dtype=np.int64))
        return sets, np.where(numbers_T <= -2, len(rows) - 2 - numbers_T, numbers_T).astype(np.int32)


Numbered = tuple[TokenSets, NDArray[np.int32]]
"""Sets, and the number of each token's set; -1 for the whole vocabulary."""


def merge(parts: Sequence[Numbered | None], lengths: Sequence[int]) -> Numbered:
    """Merge the sets and set numbers of consecutive sequences of ``lengths`` tokens; None stands for no sets (-1)."""
    table, numbers = SetTable(), []
    for part, length in zip(parts, lengths, strict=True):
        if part is None:
            numbers.append(np.full(length, -1, np.int32))
            continue
        sets, of_T = part
        bounds = np.concatenate(([0], sets.ends))
        known = [table.add_bits(bits) for bits in sets.bits]
        known += [table.add_ids(sets.ids[a:b]) for a, b in pairwise(bounds)]
        numbers.append(np.where(of_T >= 0, np.array([*known, -1], np.int32)[of_T], -1).astype(np.int32))
    return table.build(np.concatenate(numbers) if numbers else np.zeros(0, np.int32))
