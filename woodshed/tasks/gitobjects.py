"""Answers of ``git cat-file --batch``."""

from __future__ import annotations

import io
from collections.abc import Sequence


def blobs_of(answer: bytes, digests: Sequence[str]) -> list[bytes]:
    """The objects that were asked for, in that order. Raises KeyError with the digest of one that is missing."""
    stream = io.BytesIO(answer)
    found = []
    for digest in digests:
        head = stream.readline().split()
        if len(head) != 3 or head[0].decode() != digest:
            raise KeyError(digest)
        found.append(stream.read(int(head[2])))
        stream.read(1)
    return found
