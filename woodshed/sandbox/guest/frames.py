"""Frames between the host and a box's PID 1: two lengths, a JSON header, a binary body.

Both sides treat their input as hostile: lengths are bounded before anything is allocated, and JSON is the only
encoding.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
MAX_HEADER = 8 << 20
MAX_BODY = 1 << 30


class FrameError(Exception):
    """The peer does not speak the protocol."""


def encode(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Encode one frame. Raises FrameError if it would be larger than the peer accepts."""
    head = json.dumps(header, separators=(",", ":")).encode()
    if len(head) > MAX_HEADER or len(body) > MAX_BODY:
        raise FrameError(f"frame too large: header {len(head)}, body {len(body)} bytes")
    return _LENGTHS.pack(len(head), len(body)) + head + body


class Decoder:
    """Splits a byte stream into frames. ``max_body`` bounds the memory that a peer can make us use."""

    def __init__(self, max_body: int = MAX_BODY) -> None:
        self._buffer = bytearray()
        self._max_body = max_body

    def feed(self, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
        """Return the frames that ``data`` completes. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        frames = []
        while len(buffer) >= 8:
            head, body = _LENGTHS.unpack_from(buffer)
            if head > MAX_HEADER or body > self._max_body:
                raise FrameError(f"frame of {head} + {body} bytes announced")
            end = 8 + head + body
            if len(buffer) < end:
                break
            try:
                header = json.loads(bytes(buffer[8 : 8 + head]))
            except (ValueError, RecursionError):
                raise FrameError("frame header is not JSON") from None
            if not isinstance(header, dict):
                raise FrameError("frame header is not an object")
            frames.append((header, bytes(buffer[8 + head : end])))
            del buffer[:end]
        return frames


def pack_files(files: list[tuple[str, bytes]]) -> tuple[list[list[Any]], bytes]:
    """Return a (name, length) table for a header, and the concatenated contents."""
    return [[name, len(data)] for name, data in files], b"".join(data for _, data in files)


def unpack_files(table: Any, body: bytes) -> list[tuple[str, bytes]]:
    """Inverse of ``pack_files``. Raises FrameError if table and body do not match."""
    if not isinstance(table, list):
        raise FrameError("file table is not a list")
    files, at = [], 0
    for row in table:
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and type(row[1]) is int):
            raise FrameError("file table has a malformed row")
        name, size = row
        if size < 0 or at + size > len(body):
            raise FrameError("file table does not fit its body")
        files.append((name, body[at : at + size]))
        at += size
    if at != len(body):
        raise FrameError("file table does not cover its body")
    return files
