"""Append-only journal of open trajectories, with one write per turn before the turn is answered.

A frame is ``length u32, crc32 u32, payload``; a payload is ``head length u32, head (JSON)`` and, for a turn, the raw
arrays of its tokens. After a crash the last frame may be incomplete: its turn was never answered, so it is dropped. A
damaged frame before intact ones is an error, because dropping it would lose answered turns. A frame that could not be
written completely is truncated before the next one. Keys are stored as hashes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from woodshed.record.kept import KeptSets
from woodshed.record.segment import Altered, Constraint, Span

from .key_limits import KeyUsage, TurnUsage
from .recorder import Mark, OpenSegment, Recorder
from .rendering import Rendering

log = logging.getLogger(__name__)

_FRAME = struct.Struct("<II")
_HEAD = struct.Struct("<I")
_BEGINNING = b'{"kind":'
"""First bytes of every head. They occur nowhere within a head, where quotes in strings are escaped."""


@dataclass
class Kept:
    """A trajectory as stored in the journal."""

    id: str
    key_digest: bytes
    about: dict[str, Any]
    recorder: Recorder
    feedback: list[dict[str, Any]] = field(default_factory=list)
    usage: list[TurnUsage] = field(default_factory=list)
    opened: float = 0.0
    finished: bool = False
    """True if it was finished: its key is revoked, and its record is kept for a while in case the answer did not
    arrive."""
    abandoned: KeyUsage = field(default_factory=KeyUsage)
    resumed: int = 0
    repeated: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class JournalledConversation:
    """Human-readable part of a trajectory in a journal. ``about``: what it was opened with; ``opened``: Unix seconds;
    ``messages``: the conversation of each segment, in OpenAI chat form; ``feedback``: its events."""

    id: str
    about: dict[str, Any]
    opened: float
    messages: list[list[dict[str, Any]]] = field(default_factory=list)
    feedback: list[dict[str, Any]] = field(default_factory=list)


def read_conversations(path: Path) -> list[JournalledConversation]:
    """Read the conversations of a journal file without its tokens; a server may be writing to the file.

    Trajectories that were deleted or finished long ago are not included. Raises JournalError if the file cannot be
    read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from error
    found: dict[str, JournalledConversation] = {}
    for head, _ in _frames(data, path):
        kind, id = head["kind"], head["id"]
        if kind == "open":
            found[id] = JournalledConversation(id, head["about"], float(head["opened"]))
        elif kind == "close":
            found.pop(id, None)
        elif id in found and kind == "feedback":
            found[id].feedback.append(head["event"])
        elif id in found and kind == "turn":
            segments, (known, new) = found[id].messages, head["messages"]
            while len(segments) <= head["segment"]:
                segments.append([])
            segments[head["segment"]][known:] = new
    return list(found.values())


class JournalError(RuntimeError):
    """The journal cannot be used."""


class Journal:
    """The journal of one server, in the file ``open.journal``. Call ``restore`` first; it also compacts the file."""

    def __init__(self, directory: Path, *, fsync: bool = False, least: int = 64 << 20) -> None:
        """``least``: size in bytes below which the file is never compacted while the server runs."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "open.journal"
        self._fsync = fsync
        self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise JournalError(f"{directory}: another server is using this journal") from None
        self._file = -1
        self._size, self._limit, self._least = 0, least, least
        self._torn = False

    def restore(self, rendering: Rendering) -> list[Kept]:
        """Read the open trajectories, ready to continue, and the last finished ones; the file is rewritten to hold only
        these. Raises JournalError if the file is damaged before its end, or if its turns are not consecutive."""
        kept: dict[str, Kept] = {}
        data = self.path.read_bytes() if self.path.exists() else b""
        for head, arrays in _frames(data, self.path):
            kind, id = head["kind"], head["id"]
            if kind == "open":
                digest = bytes.fromhex(head["key"])
                usage = [TurnUsage(**turn) for turn in head.get("usage", [])]
                kept[id] = Kept(id, digest, head["about"], Recorder(rendering), usage=usage, opened=head["opened"])
                kept[id].abandoned = KeyUsage(*head.get("left", ()))
                kept[id].resumed = head.get("resumed", 0)
                kept[id].repeated = set(head.get("repeated", ()))
            elif kind == "close":
                kept.pop(id, None)
            elif id in kept and kind == "finish":
                kept[id].finished = True
                kept[id] = kept.pop(id)  # in the order in which they were finished, the first are forgotten first
            elif id in kept and kind == "left":
                kept[id].abandoned = KeyUsage(*head["left"])
            elif id in kept and kind == "resume":
                kept[id].key_digest, kept[id].resumed = bytes.fromhex(head["key"]), head["resumed"]
                kept[id].repeated = set()
            elif id in kept and kind == "repeat":
                kept[id].repeated.add(head["number"])
            elif id in kept and kind == "feedback":
                kept[id].feedback.append(head["event"])
            elif id in kept:
                self._check(kept[id], head)
                _replay(kept[id].recorder, head, arrays)
                if head.get("usage"):
                    kept[id].usage.append(TurnUsage(**head["usage"]))
        for k in kept.values():
            for segment in k.recorder.segments:
                segment.undelivered = True
                segment.routes.stored = len(segment.tokens)
        self._rewrite(kept.values())
        return list(kept.values())

    @property
    def full(self) -> bool:
        """True if most of the file probably belongs to closed trajectories."""
        return self._size > self._limit

    def compact(self, kept: Iterable[Kept]) -> None:
        """Rewrite the file with only the trajectories in ``kept``. If that fails, for example on a full disk, the file
        stays unchanged."""
        try:
            self._rewrite(kept)
        except OSError as error:
            self._limit = 2 * self._size
            log.warning("%s could not be compacted: %s", self.path, error)

    def _rewrite(self, kept: Iterable[Kept]) -> None:
        """Write a new file and replace the old one once the new one is complete."""
        temporary = self.path.with_suffix(".tmp")
        file, size = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), 0
        try:
            for frame in _all_frames(kept):
                _write_whole(file, frame)
                size += len(frame)
            os.fsync(file)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(file)
            temporary.unlink(missing_ok=True)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size, self._torn = file, size, False
        self._limit = max(self._least, 4 * size)

    def opened(self, kept: Kept) -> None:
        """Append a new trajectory; for a fork, with its recorded beginning."""
        self._write(b"".join(_all_frames([kept])))

    def closed(self, id: str) -> None:
        self._write(_frame({"kind": "close", "id": id}))

    def finished(self, id: str) -> None:
        self._write(_finished(id))

    def feedback(self, id: str, event: dict[str, Any]) -> None:
        self._write(_feedback(id, event))

    def abandoned(self, id: str, usage: KeyUsage) -> None:
        self._write(_frame({"kind": "left", "id": id, "left": usage}))

    def resumed(self, kept: Kept) -> None:
        """Append the new key of a resumed trajectory. It is a single frame: a part of it changes nothing."""
        self._write(_frame({"kind": "resume", "id": kept.id, "key": kept.key_digest.hex(), "resumed": kept.resumed}))

    def repeated(self, id: str, number: int) -> None:
        """Append that a resumed trajectory's client has requested reply ``number`` again."""
        self._write(_frame({"kind": "repeat", "id": id, "number": number}))

    def turn(self, id: str, index: int, segment: OpenSegment, before: Mark, usage: TurnUsage) -> None:
        """Append what was added to ``segment`` (index ``index`` in the trajectory) since ``before``, and the turn's
        usage."""
        self._write(_turn(id, index, segment, before, usage))
        segment.routes.stored = len(segment.tokens)

    def close(self) -> None:
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    def _write(self, frame: bytes) -> None:
        """Append a frame. Raises JournalError if it could not be written; then no part of it stays in the file."""
        try:
            self._cut_torn()
            self._torn = True
            _write_whole(self._file, frame)
            if self._fsync:
                os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # the next write tries again
                self._cut_torn()
            raise JournalError(f"{self.path}: {error.strerror}") from error
        self._torn = False
        self._size += len(frame)

    def _cut_torn(self) -> None:
        """Truncate the part of a frame that a failed write has left."""
        if self._torn:
            os.ftruncate(self._file, self._size)
            self._torn = False

    def _check(self, kept: Kept, turn: dict[str, Any]) -> None:
        segments, index, start = kept.recorder.segments, turn["segment"], turn["start"]
        if index > len(segments) or start != (len(segments[index].tokens) if index < len(segments) else 0):
            raise JournalError(
                f"{self.path}: a turn of {kept.id!r} (segment {index}, from token {start}) does not continue the "
                "record before it; move the file away to start without it"
            )


def _write_whole(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def _frame(head: dict[str, Any], arrays: bytes = b"") -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    payload = _HEAD.pack(len(text)) + text + arrays
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def _all_frames(kept: Iterable[Kept]) -> Iterator[bytes]:
    for k in kept:
        yield _opened(k)
        for event in k.feedback:
            yield _feedback(k.id, event)
        for i, segment in enumerate(k.recorder.segments):
            yield _turn(k.id, i, segment, Mark(0, 0, 0), None)
        if k.finished:
            yield _finished(k.id)


def _opened(kept: Kept) -> bytes:
    head = {"kind": "open", "id": kept.id, "key": kept.key_digest.hex(), "about": kept.about, "opened": kept.opened}
    resumed = {"resumed": kept.resumed, "repeated": sorted(kept.repeated)}
    return _frame({**head, "usage": [vars(turn) for turn in kept.usage], "left": kept.abandoned, **resumed})


def _finished(id: str) -> bytes:
    return _frame({"kind": "finish", "id": id})


def _feedback(id: str, event: dict[str, Any]) -> bytes:
    return _frame({"kind": "feedback", "id": id, "event": event})


def _turn(id: str, index: int, segment: OpenSegment, before: Mark, usage: TurnUsage | None) -> bytes:
    start, spans = before.tokens, max(0, before.spans - 1)
    ends = max(0, before.messages - 1)
    # a turn may bring routes of tokens before it: of a fork's beginning, or of a reply whose engine died
    routes = segment.routes.rows(min(max(0, start - 1), segment.routes.stored), len(segment.tokens))
    head = {
        "kind": "turn",
        "id": id,
        "segment": index,
        "start": start,
        "count": len(segment.tokens) - start,
        "messages": [before.messages, segment.messages[before.messages :]],
        "spans": [spans, [[s.start, s.end, s.role, s.message] for s in segment.spans[spans:]]],
        "ends": [ends, segment.ends[ends:]],
        "pending": list(segment.pending),
        "routes": None if routes is None else list(routes.shape),
        "usage": None if usage is None else vars(usage),
    }
    if not start:
        head["tools"] = segment.tools
    if constraints := [c.to_json() for c in segment.constraints if c.start >= start]:
        head["constraints"] = constraints
    if altered := [a.to_json() for a in segment.altered if a.start >= start]:
        head["altered"] = altered
    if kept := [k.to_json() for k in segment.kept if k.start >= start]:
        head["kept"] = kept
    arrays = [
        segment.tokens[start:].tobytes(),
        bytes(segment.sampled[start:]),
        segment.logprobs[start:].tobytes(),
        segment.versions[start:].tobytes(),
    ]
    if routes is not None:
        arrays.append(routes.tobytes())
    return _frame(head, b"".join(arrays))


def _frames(data: bytes, path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield head and arrays of each frame, without an incomplete end. Raises JournalError if an intact frame follows a
    damaged one."""
    position = 0
    while (payload := _payload(data, position)) is not None:
        (size,) = _HEAD.unpack_from(payload)
        yield json.loads(payload[_HEAD.size : _HEAD.size + size]), payload[_HEAD.size + size :]
        position += _FRAME.size + len(payload)
    before = _FRAME.size + _HEAD.size
    at = data.find(_BEGINNING, position + before)
    while at >= 0:
        if _payload(data, at - before) is not None:
            raise JournalError(
                f"{path}: it is damaged at byte {position}, and intact records follow; move the file away to start "
                "without it"
            )
        at = data.find(_BEGINNING, at + 1)


def _payload(data: bytes, position: int) -> bytes | None:
    """Return the payload of the frame at ``position``, None if there is no intact frame."""
    start = position + _FRAME.size
    if start > len(data):
        return None
    length, checksum = _FRAME.unpack_from(data, position)
    if not _HEAD.size <= length <= len(data) - start:
        return None
    payload = data[start : start + length]
    return payload if zlib.crc32(payload) == checksum else None


def _replay(recorder: Recorder, head: dict[str, Any], data: bytes) -> None:
    if head["segment"] == len(recorder.segments):
        recorder.adopt(head["tools"])
    segment, count = recorder.segments[head["segment"]], head["count"]
    position = 0
    for held in (segment.tokens, segment.sampled, segment.logprobs, segment.versions):
        end = position + count * memoryview(held).itemsize
        piece = data[position:end]
        if isinstance(held, bytearray):
            held += piece
        else:
            held.frombytes(piece)
        position = end
    if head["routes"] is not None:
        rows = np.frombuffer(data, np.int16, offset=position).reshape(head["routes"])
        segment.routes.fill(len(segment.tokens), rows)
    known, new = head["messages"]
    segment.messages = segment.messages[:known] + new
    at, spans = head["spans"]
    segment.spans[at:] = [Span(*span) for span in spans]
    at, ends = head["ends"]
    segment.ends[at:] = ends
    segment.pending = tuple(head["pending"])
    segment.constraints += [Constraint.from_json(c) for c in head.get("constraints", ())]
    segment.altered += [Altered.from_json(a) for a in head.get("altered", head.get("penalties", ()))]
    segment.kept += [KeptSets.from_json(k) for k in head.get("kept", ())]
