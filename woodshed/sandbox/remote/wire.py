"""Encoding of messages between a box server and its clients: one frame (``guest.frames``: JSON and bytes) each way.

Both sides check what they read: a server knows only that a client has the key, and output of boxes passes through a
server to its clients.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest.frames import Decoder, FrameError, pack_files, unpack_files
from woodshed.sandbox.protocol import (
    BoxError,
    BoxGone,
    BoxSpec,
    Egress,
    ExecResult,
    Limits,
    Paused,
    Probe,
    SandboxError,
    Snapshot,
    Unsupported,
)

KIND = "application/octet-stream"
CLIENT = "x-woodshed-client"
"""Header that names the client; boxes and snapshots belong to the client that made them."""

_LENGTHS = struct.Struct("<II")
_SPEC = {"layers", "files", "workdir", "env", "limits", "egress", "preload"}
_PLAIN = BoxSpec()
_LIMITS, _EGRESS = TypeAdapter(Limits), TypeAdapter(Egress)
_SNAPSHOT, _PROBE = TypeAdapter(Snapshot), TypeAdapter(Probe)
_ERRORS: tuple[tuple[str, type[Exception]], ...] = (
    ("paused", Paused),
    ("unsupported", Unsupported),
    ("sandbox", SandboxError),
    ("invalid", ValueError),
)


class HostLost(SandboxError):
    """The host of a box cannot be reached, or has forgotten the box; a retry gets a box on another host."""


def decode(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Decode exactly one frame. Raises ValueError."""
    try:
        found = Decoder().feed(data)
    except FrameError as error:
        raise ValueError(f"box message: {error}") from None
    if len(found) != 1 or 8 + sum(_LENGTHS.unpack_from(data)) != len(data):
        raise ValueError("box message: it is truncated, or something follows it")
    return found[0]


def encode_spec(spec: BoxSpec, layers: Sequence[str]) -> tuple[dict[str, Any], bytes]:
    """Encode a specification; ``layers``: names on the host. Raises Unsupported for fields that hosts do not take."""
    for field in dataclasses.fields(spec):
        if field.name not in _SPEC and getattr(spec, field.name) != getattr(_PLAIN, field.name):
            raise Unsupported(f"boxes on other hosts do not support {field.name!r}; run without sandbox.hosts")
    table, body = pack_files(list(spec.files.items()))
    egress = None if spec.egress is None else dataclasses.asdict(spec.egress)
    head = {
        "layers": list(layers),
        "files": table,
        "workdir": spec.workdir,
        "env": dict(spec.env),
        "limits": dataclasses.asdict(spec.limits),
        "egress": egress,
        "preload": list(spec.preload),
    }
    return head, body


def decode_spec(head: Mapping[str, Any], body: bytes) -> tuple[BoxSpec, list[str]]:
    """Decode a specification without its layers, and the layers' names. Raises ValueError naming the field."""
    if set(head) != _SPEC:
        raise ValueError(f"box specification: it needs {', '.join(sorted(_SPEC))}, and nothing else")
    for name in ("layers", "preload"):
        if not _strings(head[name]):
            raise ValueError(f"box specification: {name} must be a list of strings")
    if not isinstance(head["workdir"], str) or not _texts(head["env"]):
        raise ValueError("box specification: workdir must be a string, env an object of strings")
    try:
        files = dict(unpack_files(head["files"], body))
    except FrameError as error:
        raise ValueError(f"box specification: files: {error}") from None
    egress = None if head["egress"] is None else _EGRESS.validate_python(head["egress"])
    spec = BoxSpec(
        (),
        files,
        head["workdir"],
        head["env"],
        _LIMITS.validate_python(head["limits"]),
        egress,
        tuple(head["preload"]),
    )
    return spec, head["layers"]


def encode_result(result: ExecResult) -> tuple[dict[str, Any], bytes]:
    head = dataclasses.asdict(result) | {"out": len(result.stdout)}
    del head["stdout"], head["stderr"]
    return head, result.stdout + result.stderr


def decode_result(head: Mapping[str, Any], body: bytes) -> ExecResult:
    """Decode the result of a command. Raises ValueError."""
    try:
        size = int(head["out"])
        return ExecResult(
            int(head["returncode"]),
            body[:size],
            body[size:],
            bool(head["timed_out"]),
            bool(head["truncated"]),
            bool(head["out_of_memory"]),
            float(head["seconds"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"box message: the result of a command is broken: {error!r}") from None


def encode_snapshot(snapshot: Snapshot, instance: str) -> dict[str, Any]:
    """Encode a snapshot; its id gets the server's ``instance`` as a prefix."""
    parent = None if snapshot.parent is None else f"{instance}.{snapshot.parent}"
    return dataclasses.asdict(snapshot) | {"id": f"{instance}.{snapshot.id}", "parent": parent}


def decode_snapshot(head: Any) -> Snapshot:
    """Decode a snapshot. Raises ValueError."""
    return _SNAPSHOT.validate_python(head)


def encode_probe(probe: Probe) -> dict[str, Any]:
    return {
        "ok": probe.ok,
        "reasons": list(probe.reasons),
        "capabilities": sorted(probe.capabilities),
        "limits_in_force": dict(probe.limits_in_force),
    }


def decode_probe(head: Any) -> Probe:
    """Decode a probe. Raises ValueError."""
    return _PROBE.validate_python(head)


def encode_error(error: BaseException) -> dict[str, Any]:
    """Encode an exception for ``failure``. An OSError that is not a BoxError is a fault of this host."""
    if isinstance(error, BoxError) and error.errno is not None:
        name = error.filename if isinstance(error.filename, str) else None
        kind = "gone" if isinstance(error, BoxGone) else "os"
        return {"kind": kind, "errno": error.errno, "message": error.strerror or os.strerror(error.errno), "path": name}
    known = "lost" if isinstance(error, HostLost) else next((k for k, e in _ERRORS if isinstance(error, e)), None)
    return {"kind": known or "sandbox", "message": str(error) if known else f"{type(error).__name__}: {error}"}


def failure(head: Any) -> Exception:
    """Decode the exception that ``encode_error`` encoded."""
    if not isinstance(head, dict):
        return SandboxError(f"the host answered {head!r:.200}")
    kind, message, path = head.get("kind"), str(head.get("message")), head.get("path")
    if kind == "os" and type(head.get("errno")) is int:
        return box_error(head["errno"], message, path if isinstance(path, str) else None)
    if kind == "gone" and type(head.get("errno")) is int:
        return BoxGone(head["errno"], message)
    return HostLost(message) if kind == "lost" else dict(_ERRORS).get(str(kind), SandboxError)(message)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
