"""Lossless compression of one tensor's bytes, whatever share of them is zero.

The XOR of two consecutive checkpoints is anything from 1% non-zero bytes (bf16 at learning rate 1e-6) to nearly
dense (fp32 at 3e-4). Bytes are split into planes (byte k of every element), because sign and exponent hardly change
while low mantissa bytes look random, and every plane takes the smallest of: nothing (all zero), raw, zstd, Huffman
codes alone, or gap coding (distances between non-zero bytes and their values, each coded in turn). With gap coding
sparse planes approach the entropy of their positions, which match-based coding does not. Huffman codes alone (DEFLATE
without matches) come within some per cent of the entropy of bytes without repetition, such as those values; a search
for matches would find random ones that cost more than they save.

Blob: one byte of kind, then for ``ZERO`` nothing, ``RAW`` the bytes, ``ZSTD`` a frame, ``HUFFMAN`` a raw DEFLATE
stream, ``GAPS`` three little-endian uint64 (non-zero count, length of the gap stream, length of its blob), a byte (low
bits per gap), the low bits, and two blobs (gaps, values), ``PLANES`` one uint64 length and a blob per plane.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import zstandard
from numpy.typing import NDArray

ZERO, RAW, ZSTD, GAPS, PLANES, HUFFMAN = range(6)
_SAMPLE = 1 << 18
_BLOCKS = 8
_SMALL = 24
_SPARSE = 16
_U64 = struct.Struct("<Q")
_GAPS = struct.Struct("<QQQB")

Bytes = NDArray[np.uint8]


class CodecError(ValueError):
    """A blob cannot be decoded to the expected size."""


def encode(data: Bytes, itemsize: int, *, level: int = 1) -> bytes:
    """Compress ``data`` (uint8 ``[n * itemsize]``, elements of ``itemsize`` bytes)."""
    if not data.any():
        return bytes([ZERO])
    compressor = zstandard.ZstdCompressor(level=level)
    if itemsize == 1:
        return _plane(data, compressor)
    # Which of the two layouts is smaller depends on the tensor; for a large one a sample decides.
    sample = _sample(data, itemsize)
    planes, whole = _planes(sample, itemsize, compressor), _flat(sample, compressor)
    use_planes = len(planes) <= len(whole)
    if len(sample) == len(data):
        return planes if use_planes else whole
    return _planes(data, itemsize, compressor) if use_planes else _flat(data, compressor)


def decode(blob: bytes | memoryview, nbytes: int, itemsize: int) -> Bytes:
    """Return the ``nbytes`` bytes that ``encode`` was given with this ``itemsize``. Raises CodecError on a damaged
    blob."""
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
        elif kind == HUFFMAN:
            out = np.frombuffer(_inflate(body, nbytes), np.uint8)
        elif kind == GAPS:
            out = _decode_gaps(body, nbytes)
        elif kind == PLANES:
            out = _decode_planes(body, nbytes, itemsize)
        else:
            raise CodecError(f"unknown kind {kind}")
    except (zstandard.ZstdError, zlib.error, struct.error, IndexError) as error:
        raise CodecError(str(error)) from None
    if len(out) != nbytes:
        raise CodecError(f"decodes to {len(out)} bytes, expected {nbytes}")
    return out


def _sample(data: Bytes, itemsize: int = 1) -> Bytes:
    """Take blocks from all over a long tensor; return a short one as it is."""
    if len(data) <= _SAMPLE:
        return data
    elements = data.reshape(-1, itemsize)
    block = _SAMPLE // _BLOCKS // itemsize
    starts = np.linspace(0, len(elements) - block, _BLOCKS, dtype=np.int64)
    return np.concatenate([elements[start : start + block] for start in starts]).reshape(-1)


def _flat(data: Bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    data = np.ascontiguousarray(data)
    sample = _sample(data)
    kind, coded = ZSTD, compressor.compress(sample.data)
    if len(coded) * 8 > len(sample):  # No Huffman code is shorter than a bit.
        codes = _huffman(sample)
        if len(codes) < len(coded):
            kind, coded = HUFFMAN, codes
    if len(sample) < len(data):
        coded = _huffman(data) if kind == HUFFMAN else compressor.compress(data.data)
    return bytes([kind]) + coded if len(coded) < len(data) else bytes([RAW]) + data.tobytes()


def _huffman(data: Bytes) -> bytes:
    coder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(data.data) + coder.flush()


def _inflate(body: memoryview, nbytes: int) -> bytes:
    coder = zlib.decompressobj(-zlib.MAX_WBITS)
    out = coder.decompress(body, nbytes + 1)
    if not coder.eof or coder.unused_data:
        raise CodecError("a Huffman stream does not end where it should")
    return out


def _planes(data: Bytes, itemsize: int, compressor: zstandard.ZstdCompressor) -> bytes:
    parts = [_plane(np.ascontiguousarray(data[k::itemsize]), compressor) for k in range(itemsize)]
    return bytes([PLANES]) + b"".join(_U64.pack(len(part)) + part for part in parts)


def _plane(plane: Bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    count = int(np.count_nonzero(plane))
    if count == 0:
        return bytes([ZERO])
    # Above about a quarter of non-zero bytes an entropy code of the bytes themselves is as good.
    if count * 4 > len(plane):
        return _flat(plane, compressor)
    # A sample of a sparse plane is a poor estimate, and encoding the whole plane both ways is cheap.
    sample = _sample(plane) if count * _SPARSE > len(plane) else plane
    flat, gaps = _flat(sample, compressor), _gaps(sample, compressor)
    if len(sample) == len(plane):
        return min(flat, gaps, key=len)
    return _flat(plane, compressor) if len(flat) < len(gaps) else _gaps(plane, compressor)


def _gaps(plane: Bytes, compressor: zstandard.ZstdCompressor) -> bytes:
    """Encode positions and values of the non-zero bytes.

    A gap is split into its low bits, stored as they are, and the rest (as in Golomb's code, 1966), with so many low
    bits that the rest is mostly small. A rest r is r // 255 bytes of 255 and one byte r % 255 (< 255), so the stream
    needs no separators.
    """
    index = np.flatnonzero(plane != 0)  # Several times faster on booleans.
    gap = np.diff(index, prepend=-1) - 1
    low_bits = max(0, (len(plane) // max(1, len(index)) // _SMALL).bit_length() - 1)
    rest = gap >> low_bits
    ends = np.cumsum(rest // 255 + 1)
    stream = np.full(int(ends[-1]) if len(ends) else 0, 255, np.uint8)
    stream[ends - 1] = rest % 255
    low = np.packbits((gap[:, None] >> np.arange(low_bits) & 1).astype(np.uint8))
    positions, values = _flat(stream, compressor), _flat(plane[index], compressor)
    header = _GAPS.pack(len(index), len(stream), len(positions), low_bits)
    return b"".join([bytes([GAPS]), header, low.tobytes(), positions, values])


def _decode_gaps(body: memoryview, nbytes: int) -> Bytes:
    count, stream_bytes, positions_bytes, low_bits = _GAPS.unpack_from(body)
    if count > nbytes or stream_bytes > count + nbytes or low_bits > 62:
        raise CodecError("gap stream larger than the plane")
    at = _GAPS.size + (count * low_bits + 7) // 8
    low = np.frombuffer(body[_GAPS.size : at], np.uint8)
    stream = decode(body[at : at + positions_bytes], stream_bytes, 1)
    values = decode(body[at + positions_bytes :], count, 1)
    ends = np.flatnonzero(stream != 255)
    if len(ends) != count or at > len(body):
        raise CodecError("gap stream does not match the number of values")
    gap = np.diff(np.cumsum(stream, dtype=np.int64)[ends], prepend=0) << low_bits
    if low_bits:
        gap += np.unpackbits(low, count=count * low_bits).reshape(count, low_bits) @ (1 << np.arange(low_bits))
    out = np.zeros(nbytes, np.uint8)
    out[np.cumsum(gap + 1) - 1] = values
    return out


def _decode_planes(body: memoryview, nbytes: int, itemsize: int) -> Bytes:
    if nbytes % itemsize:
        raise CodecError(f"{nbytes} bytes are not a whole number of {itemsize}-byte elements")
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
