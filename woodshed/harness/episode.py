"""One run of the agent: its result, the events (moments) that an observer gets, and the budget that limits it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from woodshed.harness.tools.base import ToolResult
from woodshed.record.trajectory import Effort, ExitStatus, ReplyUsage, ToolEvent

from .endpoint import Reply
from .settings import LimitSettings

Message = dict[str, Any]
"""An OpenAI chat message."""


@dataclass(frozen=True)
class Call:
    """One tool call of a reply. ``arguments`` is the JSON text as the policy wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Moment:
    """One event of an episode, as an observer gets it.

    ``kind``: ``reply`` (``message``), ``call`` (before ``call`` runs), ``result`` (``call``, ``result``), ``notice``
    (a user ``message`` of the harness itself), ``summary`` (``message``), ``turn`` (the calls of a reply are done and
    the agent goes on), ``end`` of the conversation (``status`` set, nothing can follow) or ``final`` (the agent is
    about to stop; a text continues it).
    """

    kind: Literal["reply", "call", "result", "notice", "summary", "turn", "final", "end"]
    turn: int
    message: Message | None = None
    call: Call | None = None
    result: ToolResult | None = None
    status: ExitStatus | None = None


Reaction = ToolResult | str | None
"""Answer of an observer to a moment. To ``call``: a ToolResult to use in place of running the tool. To ``turn`` and
``final``: text that is sent as the user's next message."""

Observer = Callable[[Moment], Reaction | Awaitable[Reaction]]


@dataclass
class Episode:
    """One finished run. ``messages`` is every message of every context in order (a new context repeats its prompt).
    ``summary_replies``: which of the policy's replies, counted from 0, are summaries."""

    status: ExitStatus
    messages: list[Message] = field(default_factory=list)
    events: list[ToolEvent] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)
    summary_replies: list[int] = field(default_factory=list)
    error: str = ""
    replies: list[ReplyUsage] = field(default_factory=list)


class Budget:
    """Counts replies into an Effort and says when a limit is reached.

    Each token is counted once, in three classes that add up to all contexts: ``prompt_tokens`` (the start of a
    context), ``sampled_tokens`` and ``tool_output_tokens`` (the growth of a context between two replies).
    ``thinking_tokens``, ``tool_call_tokens`` and ``final_message_tokens`` split ``sampled_tokens``; numbers that a
    server does not report are 0. A summary is the final message of its context: if its text counted nowhere, a price on
    effort would move thinking into summaries.
    """

    def __init__(self, limits: LimitSettings, effort: Effort) -> None:
        self.limits = limits
        self.effort = effort
        self.deadline = time.monotonic() + limits.wall_seconds
        self.context = 0

    def count(self, reply: Reply, *, final: bool) -> None:
        """Count a reply. ``final``: its text outside thinking is a message, not calls (``calls.is_final``)."""
        effort = self.effort
        if self.context:
            effort.tool_output_tokens += max(0, reply.prompt_tokens - self.context)
        else:
            effort.prompt_tokens += reply.prompt_tokens
        self.context = reply.prompt_tokens + reply.sampled_tokens
        effort.sampled_tokens += reply.sampled_tokens
        effort.thinking_tokens += reply.thinking_tokens
        spoken = max(0, reply.sampled_tokens - reply.thinking_tokens)
        if final:
            effort.final_message_tokens += spoken
        else:
            effort.tool_call_tokens += spoken

    def new_context(self) -> None:
        """Begin a new context: the next reply is its first."""
        self.context = 0

    def reply_tokens(self, wanted: int) -> int:
        """Maximum number of tokens of the next reply."""
        room = wanted
        if self.limits.sampled_tokens:
            room = min(room, self.limits.sampled_tokens - self.effort.sampled_tokens)
        if self.limits.context_tokens and self.context:
            room = min(room, self.limits.context_tokens - self.context)
        return max(1, room)

    def time_left(self) -> float:
        return self.deadline - time.monotonic()

    def seconds(self) -> float:
        """Return the seconds of the wall limit that are spent."""
        return self.limits.wall_seconds - self.time_left()

    def set_seconds(self, seconds: float) -> None:
        """Continue as if ``seconds`` of the wall limit were spent."""
        self.deadline = time.monotonic() + self.limits.wall_seconds - seconds

    def reached(self) -> tuple[ExitStatus, str] | None:
        """Return the status with which the episode must end now, and the reason; None if it may continue."""
        limits, effort = self.limits, self.effort
        if self.time_left() <= 0:
            return "timeout", f"wall limit of {limits.wall_seconds:g} s"
        if effort.turns >= limits.turns:
            return "limit", f"{limits.turns} turns"
        if limits.sampled_tokens and effort.sampled_tokens >= limits.sampled_tokens:
            return "limit", f"{limits.sampled_tokens} sampled tokens"
        if limits.context_tokens and self.context >= limits.context_tokens:
            return "limit", f"{limits.context_tokens} tokens of context"
        return None
