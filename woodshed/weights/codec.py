"""Lossless compression of one tensor's bytes; makes no assumption about how many of them are zero.

The XOR of two consecutive checkpoints is anything from 1% non-zero bytes (bf16 at learning rate 1e-6) to nearly
dense (fp32 at 3e-4). Bytes are split into planes (byte k of every element), because sign and exponent hardly change
while low mantissa bytes look random, and every plane takes the smallest of: nothing (all zero), raw, zstd, or gap
coding (distances between non-zero bytes and their values, each entropy-coded by zstd). Gap coding is what makes
sparse planes approach the entropy of their positions, which match-based coding does not.

Blob: one byte of kind, then for ``ZERO`` nothing, ``RAW`` the bytes, ``ZSTD`` a frame, ``GAPS`` three little-endian
uint64 (non-zero count, length of the gap stream, length of its frame) and two blobs (gaps, values), ``PLANES`` one
uint64 length and a blob per plane.
"""

from __future__ import annotations

import struct

import numpy as np
import zstandard
from numpy.typing import NDArray

ZERO, RAW, ZSTD, GAPS, PLANES = range(5)
_SAMPLE = 1 << 18
_U64 = struct.Struct("<Q")
_GAPS = struct.Struct("<QQQ")

Bytes = NDArray[np.uint8]


class CodecError(ValueError):
    """A blob cannot be decoded to the size it should have."""


def encode(data: Bytes, itemsize: int, *, level: int = 1) -> bytes:
    """Compress ``data`` (uint8 ``[n * itemsize]``, elements of ``itemsize`` bytes)."""
    if not data.any():
        return bytes([ZERO])
    compressor = zstandard.ZstdCompressor(level=level)
    if itemsize == 1:
        return _plane(data, compressor)
    # Which of the two layouts wins is a property of the tensor; on a large one a sample settles it.
    sample = data[: max(itemsize, _SAMPLE - _SAMPLE % itemsize)]
    planes, whole = _planes(sample, itemsize, compressor), _flat(sample, compressor)
    use_planes = len(planes) <= len(whole)
    if len(sample) == len(data):
        return planes if use_planes else whole
    return _planes(data, itemsize, compressor) if use_planes else _flat(data, compressor)


def decode(blob: bytes | memoryview, nbytes: int, itemsize: int) -> Bytes:
    """The ``nbytes`` bytes that ``encode`` was given with this ``itemsize``; raises CodecError on a damaged blob."""
    blob = memoryview(blob)
    if not len(blob):
        raise CodecError("empty blob")
    kind, body = blob[0], blob[1:]
    try:
        if kind == ZERO:
            return np.zeros(nbytes, np.uint8)
        if kind == RAW:
            out = np.frombuffer(body, np.uint8)
        elif kind == ZSTD:
            out = np.frombuffer(zstandard.ZstdDecompressor().decompress(body, max_output_size=nbytes), np.uint8)
        elif kind == GAPS:
            out = _decode_gaps(body, nbytes)
        elif kind == PLANES:
            out = _decode_planes(body, nbytes, itemsize)
        else:
            raise CodecError(f"unknown kind {kind}")
    except (zstandard.ZstdError, struct.error, IndexError) as error:
        raise CodecError(str(error)) from None
    if len(out) != nbytes:
        raise CodecError(f"decodes to {len(out)} bytes, expected {nbytes}")
    return out


def _flat(data: Bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    frame = compressor.compress(np.ascontiguousarray(data).data)
    return bytes([ZSTD]) + frame if len(frame) < len(data) else bytes([RAW]) + data.tobytes()


def _planes(data: Bytes, itemsize: int, compressor: zstandard.ZstdCompressor) -> bytes:
    parts = [_plane(np.ascontiguousarray(data[k::itemsize]), compressor) for k in range(itemsize)]
    return bytes([PLANES]) + b"".join(_U64.pack(len(part)) + part for part in parts)


def _plane(plane: Bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    count = int(np.count_nonzero(plane))
    if count == 0:
        return bytes([ZERO])
    flat = _flat(plane, compressor)
    # Above about a quarter of non-zero bytes an entropy code of the bytes themselves is as good.
    if count * 4 > len(plane):
        return flat
    gaps = _gaps(plane, count, compressor)
    return gaps if len(gaps) < len(flat) else flat


def _gaps(plane: Bytes, count: int, compressor: zstandard.ZstdCompressor) -> bytes:
    """A gap g is g // 255 bytes of 255 and one byte g % 255 (< 255), so the stream needs no separators."""
    index = np.flatnonzero(plane)
    gap = np.diff(index, prepend=-1) - 1
    ends = np.cumsum(gap // 255 + 1)
    stream = np.full(int(ends[-1]), 255, np.uint8)
    stream[ends - 1] = gap % 255
    positions, values = _flat(stream, compressor), _flat(plane[index], compressor)
    return bytes([GAPS]) + _GAPS.pack(count, len(stream), len(positions)) + positions + values


def _decode_gaps(body: memoryview, nbytes: int) -> Bytes:
    count, stream_bytes, positions_bytes = _GAPS.unpack_from(body)
    if count > nbytes or stream_bytes > count + nbytes:
        raise CodecError("gap stream larger than the plane")
    positions = body[_GAPS.size : _GAPS.size + positions_bytes]
    stream = decode(positions, stream_bytes, 1)
    values = decode(body[_GAPS.size + positions_bytes :], count, 1)
    ends = np.flatnonzero(stream != 255)
    if len(ends) != count:
        raise CodecError("gap stream does not match the number of values")
    index = np.cumsum(stream, dtype=np.int64)[ends] + np.arange(count)
    out = np.zeros(nbytes, np.uint8)
    out[index] = values
    return out


def _decode_planes(body: memoryview, nbytes: int, itemsize: int) -> Bytes:
    if nbytes % itemsize:
        raise CodecError(f"{nbytes} bytes are no whole number of {itemsize}-byte elements")
    out = np.empty(nbytes, np.uint8)
    at = 0
    for k in range(itemsize):
        (size,) = _U64.unpack_from(body, at)
        at += _U64.size
        out[k::itemsize] = decode(body[at : at + size], nbytes // itemsize, 1)
        at += size
    if at != len(body):
        raise CodecError("trailing bytes after the last plane")
    return out
