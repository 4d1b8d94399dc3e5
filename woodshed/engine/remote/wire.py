"""Wire format between an engine server and its client. Everything is little endian; every length is checked.

A request is ``u32 length, head (JSON), prompt (int32)``. A reply is frames ``u8 kind, u32 length, payload``:

- REPORTS: reports of the tokens in the next frame: u16 k, u32 n, then n log-probabilities float32, then n times k
  token ids int32 (-1 where there are fewer), then n times k log-probabilities float32, then the sizes of n kept sets
  u32, then their ids int32
- TOKENS: n times token int32, then n times log-probability float32, then n times version int32
- ALIVE: empty; the engine is computing, or the request is waiting
- END: ``u32 length, head (JSON)``, routes int16, prompt_routes int16; ``count`` in the head is the number of tokens
- ERROR: JSON as written by ``error_body``
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from woodshed.engine.protocol import (
    Completion,
    ContextLengthExceeded,
    EngineBusy,
    EngineClosed,
    EngineError,
    Sampling,
    TokenReport,
)

TOKENS, ALIVE, END, ERROR, REPORTS = 1, 2, 3, 4, 5
LONGEST = 1 << 30
STUCK_SECONDS = 120.0
"""An engine is considered dead if one iteration takes longer."""
_FRAME = struct.Struct("<BI")
_HEAD = struct.Struct("<I")
_REPORTS = struct.Struct("<HI")
_SAMPLING = TypeAdapter(Sampling)
_NAMES = {field.name for field in fields(Sampling)}
_REASONS = ("stop", "length", "cancelled")

Sampled = tuple[list[int], list[float], list[int]]
"""Tokens, log-probabilities, versions."""


@dataclass(frozen=True)
class Ask:
    """One ``generate`` request. ``live``: send tokens at once, not in larger pieces. ``least``: oldest version of the
    weights that may answer. ``name``: identifies the request to ``POST /stop``."""

    tokens: list[int]
    sampling: Sampling
    session: str | None
    live: bool
    least: int
    name: str


def encode_ask(
    tokens: Sequence[int], sampling: Sampling, session: str | None, *, live: bool, least: int, name: str
) -> bytes:
    """Encode the body of a request. Raises ValueError if a token does not fit an int32."""
    try:
        prompt = np.asarray(tokens, np.int32)
    except OverflowError as error:
        raise ValueError(f"tokens: {error}") from None
    head = {"sampling": asdict(sampling), "session": session, "live": live, "least": least, "name": name}
    return _with_head(head, prompt.tobytes())


def decode_ask(data: bytes) -> Ask:
    """Decode a request body. Raises ValueError that says what is wrong."""
    head, rest = _split(data)
    if set(head) != {"sampling", "session", "live", "least", "name"} or not isinstance(head["sampling"], dict):
        raise ValueError("engine request: the head needs sampling, session, live, least and name, and nothing else")
    if unknown := set(head["sampling"]) - _NAMES:
        raise ValueError(f"engine request: unknown sampling field {min(unknown)!r}")
    session, live, least, name = head["session"], head["live"], head["least"], head["name"]
    if not (session is None or isinstance(session, str)) or not isinstance(live, bool) or type(least) is not int:
        raise ValueError("engine request: session must be a string or null, live true or false, least an integer")
    if not isinstance(name, str):
        raise ValueError("engine request: name must be a string")
    sampling = _SAMPLING.validate_python(head["sampling"])
    return Ask(_array(rest, np.dtype("<i4")).tolist(), sampling, session, live, least, name)


def frame(kind: int, payload: bytes = b"") -> bytes:
    return _FRAME.pack(kind, len(payload)) + payload


def encode_tokens(sampled: Sequence[tuple[int, float, int]]) -> bytes:
    """Encode tuples (token, log-probability, version) as a TOKENS frame."""
    tokens, logprobs, versions = zip(*sampled)
    parts = [np.array(tokens, "<i4"), np.array(logprobs, "<f4"), np.array(versions, "<i4")]
    return frame(TOKENS, b"".join(part.tobytes() for part in parts))


def decode_tokens(payload: bytes) -> Sampled:
    """Decode the payload of a TOKENS frame. Raises ValueError."""
    if not payload or len(payload) % 12:
        raise ValueError(f"engine reply: a TOKENS frame cannot have {len(payload)} bytes")
    n = len(payload) // 3
    ids, logprobs, versions = payload[:n], payload[n : 2 * n], payload[2 * n :]
    return (
        np.frombuffer(ids, "<i4").tolist(),
        np.frombuffer(logprobs, "<f4").tolist(),
        np.frombuffer(versions, "<i4").tolist(),
    )


def encode_reports(reports: Sequence[TokenReport]) -> bytes:
    """Encode ``reports`` (at least one) as a REPORTS frame."""
    n, k = len(reports), max(len(report.top) for report in reports)
    ids, logprobs = np.full((n, k), -1, "<i4"), np.zeros((n, k), "<f4")
    for i, report in enumerate(reports):
        for j, (token, logprob) in enumerate(report.top):
            ids[i, j], logprobs[i, j] = token, logprob
    own = np.array([report.logprob for report in reports], "<f4")
    sizes = np.array([len(report.kept) // 4 for report in reports], "<u4")
    arrays = b"".join(array.tobytes() for array in (own, ids, logprobs, sizes))
    return frame(REPORTS, _REPORTS.pack(k, n) + arrays + b"".join(report.kept for report in reports))


def decode_reports(payload: bytes) -> list[TokenReport]:
    """Decode the payload of a REPORTS frame. Raises ValueError."""
    if len(payload) < _REPORTS.size:
        raise ValueError(f"engine reply: a REPORTS frame cannot have {len(payload)} bytes")
    k, n = _REPORTS.unpack_from(payload)
    ends = np.cumsum([_REPORTS.size, 4 * n, 4 * n * k, 4 * n * k, 4 * n]).tolist()
    if n < 1 or len(payload) < ends[-1]:
        raise ValueError(f"engine reply: a REPORTS frame of {n} tokens cannot have {len(payload)} bytes")
    own, ids, logprobs, sizes, kept = (payload[a:b] for a, b in zip(ends, [*ends[1:], len(payload)]))
    bounds = np.concatenate([[0], np.cumsum(np.frombuffer(sizes, "<u4"), dtype=np.int64)]) * 4
    if len(kept) != bounds[-1]:
        raise ValueError(f"engine reply: the kept sets of a REPORTS frame have {len(kept)} of {bounds[-1]} bytes")
    columns = (
        np.frombuffer(own, "<f4").tolist(),
        np.frombuffer(ids, "<i4").reshape(n, k).tolist(),
        np.frombuffer(logprobs, "<f4").reshape(n, k).tolist(),
        [kept[a:b] for a, b in pairwise(bounds.tolist())],
    )
    return [
        TokenReport(logprob, tuple((t, value) for t, value in zip(tokens, values) if t >= 0), of_token)
        for logprob, tokens, values, of_token in zip(*columns)
    ]


def encode_end(done: Completion) -> bytes:
    """Encode the END frame of a completion whose tokens have been sent."""
    head: dict[str, Any] = {
        "stop_reason": done.stop_reason,
        "cached_tokens": done.cached_tokens,
        "count": len(done.tokens),
    }
    parts = []
    for name in ("routes", "prompt_routes"):
        array = getattr(done, name)
        head[name] = None if array is None else list(array.shape)
        if array is not None:
            parts.append(np.ascontiguousarray(array, "<i2").tobytes())
    return frame(END, _with_head(head, b"".join(parts)))


def decode_end(payload: bytes, sampled: Sampled, reports: list[TokenReport] | None = None) -> Completion:
    """Return the completion of all ``sampled`` tokens, from the payload of the END frame; ``reports`` is None if none
    were requested. Raises ValueError, also if tokens or reports are missing."""
    head, rest = _split(payload)
    tokens, logprobs, versions = sampled
    try:
        if head["count"] != len(tokens):
            raise ValueError(f"engine reply: {len(tokens)} of {head['count']} tokens arrived")
        if reports is not None and len(reports) != len(tokens):
            raise ValueError(f"engine reply: {len(reports)} reports arrived for {len(tokens)} tokens")
        if head["stop_reason"] not in _REASONS or not isinstance(head["cached_tokens"], int):
            raise ValueError("engine reply: the END frame has no valid stop reason or number of cached tokens")
        routes, rest = _routes(rest, head["routes"])
        prompt_routes, rest = _routes(rest, head["prompt_routes"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"engine reply: the END frame is invalid: {error!r}") from None
    if rest:
        raise ValueError(f"engine reply: {len(rest)} bytes too many")
    return Completion(
        tokens=tokens,
        logprobs=logprobs,
        versions=versions,
        stop_reason=head["stop_reason"],
        routes=routes,
        prompt_routes=prompt_routes,
        cached_tokens=head["cached_tokens"],
        reports=reports,
    )


def error_body(error: BaseException) -> dict[str, Any]:
    """Encode an engine's error as a JSON object, which ``failure`` decodes."""
    kind = next((name for name, known in _ERRORS if isinstance(error, known)), "error")
    body: dict[str, Any] = {"kind": kind, "message": str(error)}
    if isinstance(error, ContextLengthExceeded):
        body |= {"kind": "context", "tokens": error.tokens, "context": error.context}
    return body


def failure(body: Any) -> Exception:
    """Return the exception that ``error_body`` encoded."""
    if not isinstance(body, dict):
        return EngineError(f"the engine answered {body!r:.200}")
    kind, message = body.get("kind"), str(body.get("message"))
    if kind == "context" and isinstance(body.get("tokens"), int) and isinstance(body.get("context"), int):
        return ContextLengthExceeded(body["tokens"], body["context"])
    return dict(_ERRORS).get(str(kind), EngineError)(message)


_ERRORS: tuple[tuple[str, type[Exception]], ...] = (
    ("invalid", ValueError),
    ("busy", EngineBusy),
    ("closed", EngineClosed),
    ("error", EngineError),
)


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add received bytes; returns (kind, payload) of all frames that are complete now. Raises ValueError for
        invalid frames."""
        self._held += data
        whole = []
        while len(self._held) >= _FRAME.size:
            kind, length = _FRAME.unpack_from(self._held)
            if kind not in (TOKENS, ALIVE, END, ERROR, REPORTS) or length > LONGEST:
                raise ValueError(f"engine reply: invalid frame of kind {kind} and {length} bytes")
            end = _FRAME.size + length
            if len(self._held) < end:
                break
            whole.append((kind, bytes(self._held[_FRAME.size : end])))
            del self._held[:end]
        return whole


def _with_head(head: dict[str, Any], rest: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return _HEAD.pack(len(text)) + text + rest


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    if len(data) < _HEAD.size:
        raise ValueError("engine message: truncated")
    (length,) = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if end > len(data):
        raise ValueError("engine message: truncated in its head")
    try:
        head = json.loads(data[_HEAD.size : end])
    except RecursionError:
        raise ValueError("engine message: the head is nested too deeply") from None
    if not isinstance(head, dict):
        raise ValueError("engine message: the head is not a JSON object")
    return head, data[end:]


def _array(data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise ValueError("engine message: truncated within a number")
    return np.frombuffer(data, dtype)


def _routes(data: bytes, shape: Any) -> tuple[NDArray[np.int16] | None, bytes]:
    if shape is None:
        return None, data
    if len(shape) != 3 or not all(isinstance(n, int) and 0 <= n < 1 << 31 for n in shape):
        raise ValueError(f"engine reply: {shape!r:.60} is not a shape of routes")
    end = 2 * math.prod(shape)
    if end > len(data):
        raise ValueError("engine reply: routes are truncated")
    return np.frombuffer(data[:end], "<i2").astype(np.int16).reshape(shape), data[end:]
