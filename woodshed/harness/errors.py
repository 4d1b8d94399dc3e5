"""Error types of the harness. A tool error is an ordinary result that the policy reads; it never ends an episode."""

from __future__ import annotations

from typing import ClassVar

from woodshed.record.fault import Fault, FaultSource

FORMAT_ERRORS = frozenset({"no_call", "cut_off", "malformed_call", "unknown_tool", "invalid_arguments"})
"""Violations of the call format. Each counts as an invalid call; a turn without any other call counts as a bad turn."""

TOOL_ERRORS = frozenset(
    {
        "path_outside_workspace",
        "invalid_path",
        "not_found",
        "is_directory",
        "not_a_directory",
        "exists",
        "permission_denied",
        "too_large",
        "not_text",
        "no_match",
        "multiple_matches",
        "no_change",
        "no_such_line",
        "syntax_error",
        "nothing_to_undo",
        "invalid_pattern",
        "timeout",
        "out_of_memory",
        "no_tests",
        "io_error",
        "too_many_calls",
        "not_executed",
        "internal_error",
    }
)
"""Errors of well-formed calls. ``internal_error`` always means a bug in a tool and is logged."""

DETAIL_CHARS = 300


class ToolError(Exception):
    """A call failed. ``kind`` is a member of FORMAT_ERRORS or TOOL_ERRORS, ``detail`` says what to do."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class EndpointError(Fault):
    """The chat endpoint did not give a reply."""

    source: ClassVar[FaultSource] = "endpoint"


class EndpointLost(EndpointError):
    """Infrastructure failure: no reply after all tries (connection, server error, refused key or request)."""


class ContextFull(EndpointError):
    """The endpoint's context cannot hold the request."""


def error_text(kind: str, detail: str, with_detail: bool = True) -> str:
    """One short line ``error: ...``. The detail may hold text of the policy: it is cut and newlines are escaped."""
    words = kind.replace("_", " ")
    if not with_detail or not detail:
        return f"error: {words}"
    line = detail.replace("\r", "\\r").replace("\n", "\\n")
    if len(line) > DETAIL_CHARS:
        line = line[:DETAIL_CHARS] + "…"
    return f"error: {words}: {line}"
