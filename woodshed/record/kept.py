"""Kept sets: the tokens that top-k, top-p and min-p left to sample from, recorded for each sampled token.

Truncated sampling renormalises over the kept set, so the recorded log-probability belongs to another distribution than
the policy's. With the set on record a trainer renormalises over the same tokens (the "keep sampling mask" of
DeepSeek-V3.2, section 3.1), and importance ratios compare equal supports.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class KeptSets:
    """Tokens ``[start, end)`` of a segment were sampled with top-k, top-p or min-p.

    ``data`` holds one kept set per token, see ``encode_sets``; it is empty if the engine did not report them. Such
    tokens cannot be trained on.
    """

    start: int
    end: int
    data: bytes

    @staticmethod
    def of(start: int, sets: Sequence[bytes]) -> KeptSets:
        """Make the record of ``sets``, each the ids as int32 little endian, as in ``TokenReport.kept``. If one of them
        is empty (unknown), all count as unknown."""
        known = all(sets)
        data = encode_sets([np.frombuffer(ids, "<i4") for ids in sets]) if known else b""
        return KeptSets(start, start + len(sets), data)

    @property
    def known(self) -> bool:
        """True if the engine reported the sets."""
        return bool(self.data)

    def sets(self) -> list[NDArray[np.int32]]:
        """Return the ids of each set, ascending, int32 ``[n]``. Raises ValueError if they are unknown or damaged."""
        if not self.known:
            raise ValueError(f"the kept sets of tokens {self.start} to {self.end} are not recorded")
        found = decode_sets(self.data)
        if len(found) != self.end - self.start:
            raise ValueError(f"{len(found)} kept sets are recorded for tokens {self.start} to {self.end}")
        return found

    def to_json(self) -> list[Any]:
        return [self.start, self.end, base64.b64encode(self.data).decode("ascii")]

    @staticmethod
    def from_json(data: Sequence[Any]) -> KeptSets:
        """Read kept sets. Raises TypeError or ValueError for what ``to_json`` did not write."""
        start, end, text = data
        if not isinstance(start, int) or not isinstance(end, int) or not isinstance(text, str):
            raise ValueError(f"not kept sets: {data!r:.80}")
        try:
            return KeptSets(start, end, base64.b64decode(text, validate=True))
        except binascii.Error as error:
            raise ValueError(f"not kept sets: {error}") from None


def encode_sets(sets: Sequence[NDArray[np.integer]]) -> bytes:
    """Encode each set as int32 n and n ids int32 or, if that is shorter, as int32 -b and b bytes of bits; all little
    endian. ``sets``: ids ``[n]``, ascending, at least one each."""
    parts = []
    for ids in sets:
        width = (int(ids[-1]) >> 3) + 1
        if 4 * len(ids) <= width:
            parts += [len(ids).to_bytes(4, "little"), ids.astype("<i4").tobytes()]
        else:
            bits = np.zeros(8 * width, np.bool_)
            bits[ids] = True
            packed = np.packbits(bits, bitorder="little").tobytes()
            parts += [(-width).to_bytes(4, "little", signed=True), packed]
    return b"".join(parts)


def decode_sets(data: bytes) -> list[NDArray[np.int32]]:
    """Decode the sets that ``encode_sets`` wrote. Raises ValueError for other data."""
    sets, at = [], 0
    while at < len(data):
        count = int.from_bytes(data[at : at + 4], "little", signed=True)
        at += 4
        size = 4 * count if count >= 0 else -count
        part = data[at : at + size]
        if not count or len(part) < size:
            raise ValueError("a kept set is truncated or empty")
        if count > 0:
            sets.append(np.frombuffer(part, "<i4").astype(np.int32))
        else:
            bits = np.unpackbits(np.frombuffer(part, np.uint8), bitorder="little")
            sets.append(np.flatnonzero(bits).astype(np.int32))
        at += size
    return sets
