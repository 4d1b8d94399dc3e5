"""Encoding of pieces against a base version as parts (byte strings), and decoding.

The delta is the XOR of raw bytes against the base version: exact for every dtype, its own inverse, and zero where
nothing changed (PULSE, arXiv:2602.03839, measures about 99% unchanged bf16 values per RL step). A piece that the base
does not hold in the same dtype and region is written whole, so a trainer may change its layout between two versions.

A part consists of the length of its index (uint32, little-endian), the index (JSON, zstd) and the codec's blobs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import zstandard

from .codec import CodecError, decode, encode
from .errors import TornVersion, WrongBase
from .image import Image, Piece, dtype_of
from .shards import Region

T = TypeVar("T")
Wanted = Callable[[str, Region], bool]
"""Returns whether a reader needs a piece, given its tensor name and region."""

_LENGTH = struct.Struct("<I")
_MAX_INDEX = 1 << 28


def encode_parts(image: Image, base: Image | None, *, level: int = 1, part_bytes: int = 1 << 28) -> Iterator[bytes]:
    """Yield parts of about ``part_bytes`` bytes of weights each, so that memory is bounded by one part.

    ``base=None`` writes everything whole. There is at least one part, even without pieces.
    """
    entries: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    offset = held = 0
    for key, piece in image.items():
        old = base.get(key) if base is not None else None
        if old is not None and (old.dtype, old.region) != (piece.dtype, piece.region):
            old = None
        data = piece.data
        if old is not None:
            data = np.zeros(0, np.uint8) if old.checksum == piece.checksum else np.bitwise_xor(piece.data, old.data)
        blob = encode(data, piece.itemsize, level=level)
        region = {} if piece.region.is_whole else {"start": piece.region.start, "size": piece.region.shape}
        entries.append(
            {
                "name": piece.name,
                "dtype": piece.dtype,
                "shape": piece.region.whole,
                **region,
                "checksum": piece.checksum,
                "xor": old is not None,
                "offset": offset,
                "bytes": len(blob),
            }
        )
        blobs.append(blob)
        offset += len(blob)
        held += len(piece.data)
        if held >= part_bytes:
            yield _pack(entries, blobs)
            entries, blobs, offset, held = [], [], 0, 0
    if entries or not image:
        yield _pack(entries, blobs)


def decode_part(data: bytes, base: Image | None, *, where: str, wanted: Wanted | None = None) -> Image:
    """Decode the pieces of one part (those ``wanted``). ``where`` names the file in errors.

    Raises WrongBase if ``base`` lacks a piece that the delta was made from, TornVersion if bytes are damaged.
    ``base`` is not changed, so a failed call can be repeated.
    """
    entries, body = _unpack(data, where)
    image: Image = {}
    for entry in entries:
        try:
            name, dtype, expected = (_typed(entry, field, str) for field in ("name", "dtype", "checksum"))
            whole, xor = _sizes(entry, "shape"), _typed(entry, "xor", bool)
            cut = "start" in entry
            region = Region(whole, _sizes(entry, "start"), _sizes(entry, "size")) if cut else Region.all_of(whole)
            itemsize = dtype_of(dtype).itemsize
            offset, size = _typed(entry, "offset", int), _typed(entry, "bytes", int)
            if not (offset >= 0 and 0 <= size <= len(body) - offset):
                raise ValueError(f"bytes {offset} to {offset + size} of {len(body)}")
        except (KeyError, TypeError, ValueError) as error:
            raise TornVersion(f"{where}: not an index entry ({error!r})") from None
        if name + region.suffix in image:
            raise TornVersion(f"{where}: {name + region.suffix} appears twice")
        if wanted is not None and not wanted(name, region):
            continue
        key = name + region.suffix
        old = base.get(key) if xor and base is not None else None
        if xor and (old is None or (old.dtype, old.region) != (dtype, region)):
            raise WrongBase(f"{where}: {key} is a delta to weights that are not held; use an anchor")
        if old is not None and old.checksum == expected:
            image[key] = old
            continue
        try:
            payload = decode(body[offset : offset + size], itemsize * region.numel, itemsize)
        except (CodecError, ValueError, OverflowError, MemoryError) as error:
            raise TornVersion(f"{where}: {key}: {error}") from None
        piece = Piece(name, dtype, region, np.bitwise_xor(payload, old.data) if old is not None else np.array(payload))
        if piece.checksum != expected:
            raise TornVersion(f"{where}: {key} does not match its checksum after decoding")
        image[key] = piece
    return image


def _typed(entry: Any, field: str, kind: type[T]) -> T:
    value = entry[field]
    if type(value) is not kind:
        raise TypeError(f"{field} is {value!r}")
    return value


def _sizes(entry: Any, field: str) -> tuple[int, ...]:
    values = _typed(entry, field, list)
    if not all(type(n) is int and 0 <= n < 1 << 48 for n in values):
        raise TypeError(f"{field} is {values!r}")
    return tuple(values)


def _pack(entries: list[dict[str, Any]], blobs: list[bytes]) -> bytes:
    index = zstandard.ZstdCompressor(level=9).compress(json.dumps(entries, separators=(",", ":")).encode())
    return b"".join([_LENGTH.pack(len(index)), index, *blobs])


def _unpack(data: bytes, where: str) -> tuple[list[dict[str, Any]], memoryview]:
    try:
        (length,) = _LENGTH.unpack_from(data)
        view = memoryview(data)[_LENGTH.size :]
        index = zstandard.ZstdDecompressor().decompress(view[:length], max_output_size=_MAX_INDEX)
        entries = json.loads(index)
        if not isinstance(entries, list):
            raise ValueError("not a list")
        return entries, view[length:]
    except (struct.error, zstandard.ZstdError, ValueError, RecursionError) as error:
        raise TornVersion(f"{where}: its index cannot be read ({error})") from None
