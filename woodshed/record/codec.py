"""One trajectory as bytes: a JSON head and the raw arrays behind it. Length-checked, no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np

from .segment import Constraint, Penalties, Segment, Span
from .trajectory import Effort, Outcome, ToolEvent, Trajectory

_MAGIC = b"WSTR1\n"
_ARRAYS = (("tokens", "<i4"), ("sampled", "|b1"), ("logprobs", "<f4"), ("versions", "<i4"))


def trajectory_to_bytes(trajectory: Trajectory) -> bytes:
    head: dict[str, Any] = {k: v for k, v in vars(trajectory).items() if k != "segments"}
    head["outcome"] = asdict(trajectory.outcome) if trajectory.outcome else None
    head["effort"] = asdict(trajectory.effort)
    head["events"] = [vars(event) for event in trajectory.events]
    head["segments"], arrays = [], []
    for segment in trajectory.segments:
        routes = None if segment.routes is None else list(segment.routes.shape)
        spans = [[s.start, s.end, s.role, s.message] for s in segment.spans]
        about = {"length": len(segment), "routes": routes, "spans": spans}
        if segment.constraints:
            about["constraints"] = [constraint.to_json() for constraint in segment.constraints]
        if segment.penalties:
            about["penalties"] = [penalties.to_json() for penalties in segment.penalties]
        head["segments"].append(about)
        arrays += [np.ascontiguousarray(getattr(segment, name), dtype).tobytes() for name, dtype in _ARRAYS]
        if segment.routes is not None:
            arrays.append(np.ascontiguousarray(segment.routes, "<i2").tobytes())
    text = json.dumps(head, ensure_ascii=True).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *arrays])


def trajectory_from_bytes(data: bytes) -> Trajectory:
    """Raises ValueError for anything that ``trajectory_to_bytes`` did not write."""
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("not a trajectory record")
    start = len(_MAGIC) + 8
    size = int.from_bytes(data[len(_MAGIC) : start], "little")
    head = json.loads(data[start : start + size])
    position = start + size
    segments = []
    for item in head.pop("segments"):
        length, values = item["length"], {}
        for name, dtype in _ARRAYS:
            values[name], position = _take(data, position, dtype, length)
        routes = None
        if item["routes"] is not None:
            flat, position = _take(data, position, "<i2", int(np.prod(item["routes"])))
            routes = flat.reshape(item["routes"])
        constraints = [Constraint.from_json(c) for c in item.get("constraints", ())]
        penalties = [Penalties.from_json(p) for p in item.get("penalties", ())]
        spans = [Span(*s) for s in item["spans"]]
        segments.append(Segment(**values, spans=spans, routes=routes, constraints=constraints, penalties=penalties))
    if position != len(data):
        raise ValueError(f"trajectory record has {len(data) - position} bytes too many")
    head["outcome"] = Outcome(**head["outcome"]) if head["outcome"] else None
    head["effort"] = Effort(**head["effort"])
    head["events"] = [ToolEvent(**event) for event in head["events"]]
    return Trajectory(**head, segments=segments)


def _take(data: bytes, position: int, dtype: str, count: int) -> tuple[Any, int]:
    end = position + np.dtype(dtype).itemsize * count
    if end > len(data):
        raise ValueError("trajectory record is cut short")
    return np.frombuffer(data, dtype, count, position).copy(), end
