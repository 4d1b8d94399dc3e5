"""Wire format of the answer to ``finish``: a JSON head, then the segments as raw arrays. Every length is checked.

Layout: ``WSSG1\\n``, length of the head (u64 little endian), head (JSON), then per segment tokens int32, sampled bool,
logprobs float32, versions int32 and, where present, routes int16, all little endian.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from woodshed.record.kept import KeptSets
from woodshed.record.segment import Altered, Constraint, Segment, Span

Message = dict[str, Any]

CONTENT_TYPE = "application/x-woodshed-segments"
_MAGIC = b"WSSG1\n"
_ARRAYS = (("tokens", "<i4"), ("sampled", "|b1"), ("logprobs", "<f4"), ("versions", "<i4"))


@dataclass
class Finished:
    """A closed trajectory as the gateway recorded it. ``about`` is what it was opened with; times are Unix seconds.

    ``usage``: one ``key_limits.TurnUsage`` as a dict for each answered request. ``messages``: the conversation of each
    segment, if requested. ``refusals``: error code -> (HTTP status, last message). ``ignored``: request field without
    effect -> number of requests that had it.
    """

    id: str
    segments: list[Segment]
    prefix_breaks: int = 0
    usage: list[dict[str, Any]] = field(default_factory=list)
    feedback: list[dict[str, Any]] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    opened: float = 0.0
    messages: list[list[dict[str, Any]]] = field(default_factory=list)
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    repeating: bool = False
    """True if it was resumed and ended before its client had requested all previously recorded replies again."""

    @property
    def requests(self) -> int:
        """Number of answered requests."""
        return len(self.usage)


def told(conversations: Sequence[list[Message]], segments: Sequence[Segment]) -> list[list[Message]]:
    """Return the conversations of ``segments``, each without the leading messages that it shares with an earlier one.

    A reply that its segment sampled stays, even if an earlier one equals it: one prompt may be answered twice.
    """
    found = []
    for number, conversation in enumerate(conversations):
        known = max((len(shared(conversation, earlier)) for earlier in conversations[:number]), default=0)
        for segment in segments[number : number + 1]:
            own = (span.message for span in segment.spans if segment.sampled[span.start : span.end].any())
            known = min(known, next(own, known))
        found.append(conversation[known:])
    return found


def shared(one: Sequence[Message], other: Sequence[Message]) -> Sequence[Message]:
    """Return the equal messages at the beginning of two conversations."""
    for number, (left, right) in enumerate(zip(one, other)):
        if left != right:
            return one[:number]
    return one[: len(other)]


def encode(finished: Finished) -> bytes:
    head: dict[str, Any] = {k: v for k, v in vars(finished).items() if k != "segments"}
    shapes: list[dict[str, Any]] = []
    parts: list[bytes] = []
    for segment in finished.segments:
        routes = None if segment.routes is None else list(segment.routes.shape)
        spans = [[s.start, s.end, s.role, s.message] for s in segment.spans]
        shapes.append({"length": len(segment), "routes": routes, "spans": spans})
        if segment.constraints:
            shapes[-1]["constraints"] = [constraint.to_json() for constraint in segment.constraints]
        if segment.altered:
            shapes[-1]["altered"] = [a.to_json() for a in segment.altered]
        if segment.kept:
            shapes[-1]["kept"] = [kept.to_json() for kept in segment.kept]
        parts += [np.ascontiguousarray(getattr(segment, name), dtype).tobytes() for name, dtype in _ARRAYS]
        if segment.routes is not None:
            parts.append(np.ascontiguousarray(segment.routes, "<i2").tobytes())
    text = _pieces({**head, "segments": shapes}).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *parts])


def _pieces(value: Any, depth: int = 3) -> str:
    """Encode ``value`` as JSON part by part: a single ``json.dumps`` would block other threads for its duration."""
    if depth and isinstance(value, dict):
        parts = [f"{json.dumps(name)}:{_pieces(part, depth - 1)}" for name, part in value.items()]
        return "{" + ",".join(parts) + "}"
    if depth and isinstance(value, list):
        return "[" + ",".join([_pieces(part, depth - 1) for part in value]) + "]"
    return json.dumps(value, separators=(",", ":"))


def decode(data: bytes) -> Finished:
    """Decode what ``encode`` wrote. Raises ValueError for other data and for inconsistent segments."""
    start = len(_MAGIC) + 8
    if data[: len(_MAGIC)] != _MAGIC or len(data) < start:
        raise ValueError("not a segments record")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    if end > len(data):
        raise ValueError("segments record is truncated in its head")
    try:
        head = json.loads(data[start:end])
        segments = []
        for shape in head.pop("segments"):
            segment, end = _segment(data, end, shape)
            segments.append(segment)
        finished = Finished(segments=segments, **head)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"segments record has an invalid head: {error!r}") from None
    if end != len(data):
        raise ValueError(f"segments record has {len(data) - end} bytes too many")
    return finished


def _segment(data: bytes, position: int, shape: dict[str, Any]) -> tuple[Segment, int]:
    values: dict[str, Any] = {}
    for name, dtype in _ARRAYS:
        values[name], position = _take(data, position, dtype, [shape["length"]])
    routes = None
    if shape["routes"] is not None:
        routes, position = _take(data, position, "<i2", shape["routes"])
    constraints = [Constraint.from_json(c) for c in shape.get("constraints", ())]
    altered = [Altered.from_json(a) for a in shape.get("altered", ())]
    kept = [KeptSets.from_json(k) for k in shape.get("kept", ())]
    spans = [Span(*span) for span in shape["spans"]]
    segment = Segment(**values, spans=spans, routes=routes, constraints=constraints, altered=altered, kept=kept)
    segment.check()
    return segment, position


def _take(data: bytes, position: int, dtype: str, shape: list[int]) -> tuple[Any, int]:
    count = math.prod(shape)
    end = position + np.dtype(dtype).itemsize * count
    if any(n < 0 for n in shape) or end > len(data):
        raise ValueError("segments record is truncated")
    return np.frombuffer(data, dtype, count, position).reshape(shape).copy(), end
