"""Delta codecs of other systems, reimplemented from their descriptions, to compare with ours, tensor by tensor.

Every codec is a pair of functions on the bytes of one tensor; all get the same bytes and must restore them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard
from numpy.typing import NDArray

from woodshed.weights.delta import decode_part, encode_parts
from woodshed.weights.image import Image

Bytes = NDArray[np.uint8]
Encode = Callable[[Bytes, Bytes, int], list[bytes]]
Decode = Callable[[Bytes, list[bytes], int], Bytes]


@dataclass(frozen=True)
class Codec:
    """``encode(old, new, itemsize)`` returns streams, ``decode(old, streams, itemsize)`` the new bytes."""

    encode: Encode
    decode: Decode


def zstd(data: bytes, level: int = 1) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def unzstd(data: bytes) -> Bytes:
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint8)


def split(data: Bytes, size: int) -> bytes:
    return data.reshape(-1, size).T.tobytes()


def unsplit(data: Bytes, size: int) -> Bytes:
    return np.ascontiguousarray(data.reshape(size, -1).T).reshape(-1)


def changed(old: Bytes, new: Bytes, size: int) -> NDArray[np.int64]:
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    return np.flatnonzero(old.view(kind) != new.view(kind))


def scatter(old: Bytes, index: NDArray, rows: Bytes, *, xor: bool) -> Bytes:
    out = old.copy()
    elements = out.reshape(-1, rows.shape[1])
    elements[index] = elements[index] ^ rows if xor else rows
    return out


def index_value(old: Bytes, new: Bytes, size: int) -> list[bytes]:
    index = changed(old, new, size)
    return [index.astype(np.int32).tobytes(), new.reshape(-1, size)[index].tobytes()]


def index_value_back(old: Bytes, streams: list[bytes], size: int) -> Bytes:
    values = np.frombuffer(streams[1], np.uint8).reshape(-1, size)
    return scatter(old, np.frombuffer(streams[0], np.int32), values, xor=False)


def gaps(old: Bytes, new: Bytes, size: int, *, xor: bool) -> list[bytes]:
    """Encode the gaps between changed elements in the narrowest unsigned type that holds them, then the values or, with
    ``xor``, their XOR with the old ones split by byte; zstd on each."""
    index = changed(old, new, size)
    gap = np.diff(index, prepend=-1) - 1
    width = next(t for t in (np.uint8, np.uint16, np.uint32) if not len(gap) or gap.max() <= np.iinfo(t).max)
    values = (new ^ old if xor else new).reshape(-1, size)[index]
    return [
        np.dtype(width).char.encode(),
        zstd(gap.astype(width).tobytes()),
        zstd(split(values.reshape(-1), size) if xor else values.tobytes()),
    ]


def gaps_back(old: Bytes, streams: list[bytes], size: int, *, xor: bool) -> Bytes:
    gap = unzstd(streams[1]).view(streams[0].decode()).astype(np.int64)
    values = unzstd(streams[2])
    rows = (unsplit(values, size) if xor and len(values) else values).reshape(-1, size)
    return scatter(old, np.cumsum(gap + 1) - 1, rows, xor=xor)


PEERS = {
    "full copy": Codec(lambda o, n, s: [n.tobytes()], lambda o, b, s: np.frombuffer(b[0], np.uint8)),
    "zstd": Codec(lambda o, n, s: [zstd(n.tobytes())], lambda o, b, s: unzstd(b[0])),
    "index + value (TRL)": Codec(index_value, index_value_back),
    "xor + zstd (slime)": Codec(lambda o, n, s: [zstd((n ^ o).tobytes())], lambda o, b, s: unzstd(b[0]) ^ o),
    "xor + byte split + zstd": Codec(
        lambda o, n, s: [zstd(split(n ^ o, s))], lambda o, b, s: unsplit(unzstd(b[0]), s) ^ o
    ),
    "xor + byte split + zstd-9": Codec(
        lambda o, n, s: [zstd(split(n ^ o, s), 9)], lambda o, b, s: unsplit(unzstd(b[0]), s) ^ o
    ),
    "gaps + value + zstd (PULSE)": Codec(
        lambda o, n, s: gaps(o, n, s, xor=False), lambda o, b, s: gaps_back(o, b, s, xor=False)
    ),
    "gaps + xor value + zstd (NeMo-DCR)": Codec(
        lambda o, n, s: gaps(o, n, s, xor=True), lambda o, b, s: gaps_back(o, b, s, xor=True)
    ),
}
OURS = "woodshed"


class Tally:
    """Bytes and CPU seconds of every codec over any number of pairs of images, checked bit by bit."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        names = [name for name in PEERS if name not in without]
        self.rows = {name: {"bytes": 0, "encode_s": 0.0, "decode_s": 0.0} for name in (*names, OURS)}
        self.elements = self.changed = 0

    def add(self, old: Image, new: Image) -> None:
        for name, row in self.rows.items():
            if name == OURS:
                self._ours(old, new)
                continue
            codec = PEERS[name]
            for key, piece in new.items():
                size = piece.itemsize
                began = time.process_time()
                streams = codec.encode(old[key].data, piece.data, size)
                between = time.process_time()
                back = codec.decode(old[key].data, streams, size)
                row["decode_s"] += time.process_time() - between
                row["encode_s"] += between - began
                row["bytes"] += sum(map(len, streams))
                assert np.array_equal(back, piece.data), f"{name}: {key} did not come back"
        for key, piece in new.items():
            self.elements += len(piece.data) // piece.itemsize
            self.changed += len(changed(old[key].data, piece.data, piece.itemsize))

    def _ours(self, old: Image, new: Image) -> None:
        """Add our codec, including names, shapes, checksums and verification, which the other codecs do not have."""
        row = self.rows[OURS]
        began = time.process_time()
        parts = list(encode_parts(new, old))
        between = time.process_time()
        back: Image = {}
        for part in parts:
            back |= decode_part(part, old, where="benchmark")
        row["decode_s"] += time.process_time() - between
        row["encode_s"] += between - began
        row["bytes"] += sum(map(len, parts))
        assert all(np.array_equal(back[key].data, piece.data) for key, piece in new.items())

    def result(self) -> dict[str, object]:
        best = min((row["bytes"], name) for name, row in self.rows.items() if name != OURS)
        return {
            "elements": self.elements,
            "changed_share": self.changed / max(1, self.elements),
            "best_peer": best[1],
            "ratio_to_best_peer": self.rows[OURS]["bytes"] / best[0],
            "codecs": self.rows,
        }
