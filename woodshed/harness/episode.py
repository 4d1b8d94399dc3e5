"""What one run of the agent leaves behind, and what an observer of it sees."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from woodshed.harness.tools.base import ToolResult
from woodshed.record.trajectory import Effort, ExitStatus, ToolEvent

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
    """What an observer is told.

    ``kind``: ``reply`` (``message``), ``call`` (before ``call`` runs), ``result`` (``call``, ``result``), ``notice``
    (a user ``message`` of the harness itself), ``summary`` (``message``), ``end`` of the conversation
    (``status`` set, nothing can follow) or ``final`` (the agent is about to stop; a text continues it).
    """

    kind: Literal["reply", "call", "result", "notice", "summary", "final", "end"]
    turn: int
    message: Message | None = None
    call: Call | None = None
    result: ToolResult | None = None
    status: ExitStatus | None = None


Reaction = ToolResult | str | None
"""To ``call``: a ToolResult answers in the tool's place. To ``final``: a text is sent as the user's next message."""

Observer = Callable[[Moment], Reaction | Awaitable[Reaction]]


@dataclass
class Episode:
    """One finished run. ``messages`` is every message of every context in order (a new context repeats its prompt)."""

    status: ExitStatus
    messages: list[Message] = field(default_factory=list)
    events: list[ToolEvent] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)
    summaries: int = 0
    error: str = ""
