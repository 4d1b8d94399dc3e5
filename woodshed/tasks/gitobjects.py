"""git on repositories that somebody else may have made: how it is called, and what ``cat-file --batch`` answers."""

from __future__ import annotations

import io
from collections.abc import Sequence

QUIET = {"GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
"""Environment of every call."""


def git_command(verb: str, *arguments: str, more: Sequence[str] = ()) -> list[str]:
    """A call that starts nothing that the configuration of the repository names; ``more``: options before the verb."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    if verb not in ("clone", "fetch"):  # a partial clone would fetch what it lacks, by the program that it names
        safe += ["-c", "protocol.allow=never"]
    return ["git", *safe, *more, verb, *arguments]


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
