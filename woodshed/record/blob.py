"""Compressed trajectory records. That of a fork holds what its parent's record lacks, and the parent's id.

A fork repeats the messages, tokens and tool results of its parent up to the state where it starts. The parent's record
is the dictionary of its compression, so all of this becomes references, wherever it lies in the record.
"""

from __future__ import annotations

from dataclasses import dataclass

import zstandard

_CONTINUES = b"WSFK1\n"
_WINDOW_LOG = 27
"""Log2 of the largest window that a reader accepts by default; what does not fit is compressed on its own."""


@dataclass(frozen=True)
class Parent:
    """A stored trajectory: its id, and its record before compression."""

    id: str
    record: bytes


def compress(record: bytes, parent: Parent | None = None) -> bytes:
    """Compress a record, with a checksum. ``parent``: what it continues, without which it cannot be read again."""
    window_log = 0 if parent is None else (len(parent.record) + len(record)).bit_length()
    if parent is None or window_log > _WINDOW_LOG:
        return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(record)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1,
        write_checksum=True,
        window_log=max(window_log, zstandard.WINDOWLOG_MIN),
        # The default table holds too few places of a record of a megabyte, and finds almost nothing in it.
        hash_log=min(max(window_log, 12), 22),
    )
    compressor = zstandard.ZstdCompressor(dict_data=_dictionary(parent), compression_params=parameters)
    name = parent.id.encode()
    return b"".join([_CONTINUES, len(name).to_bytes(4, "little"), name, compressor.compress(record)])


def parent_of(blob: bytes) -> str | None:
    """Return the id of the parent that ``decompress`` needs; None if it needs none."""
    if not blob.startswith(_CONTINUES):
        return None
    start = len(_CONTINUES) + 4
    return blob[start : start + int.from_bytes(blob[len(_CONTINUES) : start], "little")].decode()


def decompress(blob: bytes, parent: Parent | None = None) -> bytes:
    """Return the record of a blob. Raises ValueError if it is damaged, or if ``parent`` is another than that given to
    ``compress``."""
    name = parent_of(blob)
    if name is None:
        dictionary, start = None, 0
    elif parent is None or parent.id != name:
        raise ValueError(f"the record continues that of {name}")
    else:
        dictionary, start = _dictionary(parent), len(_CONTINUES) + 4 + len(name.encode())
    try:
        return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(blob[start:])
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def _dictionary(parent: Parent) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(parent.record, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
