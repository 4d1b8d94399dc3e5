"""How much of an episode is used up, and what for."""

from __future__ import annotations

import time

from woodshed.record.trajectory import Effort, ExitStatus

from .endpoint import Reply
from .settings import LimitSettings


class Budget:
    """Counts replies into an Effort and says when a limit is reached.

    Tokens are counted once each, in four classes that add up to all contexts: ``prompt_tokens`` (what a context
    starts with), ``sampled_tokens``, ``tool_output_tokens`` (what a context grew by between two replies) and nothing
    else. ``thinking_tokens``, ``tool_call_tokens`` and ``final_message_tokens`` split ``sampled_tokens``; what a
    server does not report is 0.
    """

    def __init__(self, limits: LimitSettings, effort: Effort) -> None:
        self.limits = limits
        self.effort = effort
        self.deadline = time.monotonic() + limits.wall_seconds
        self.context = 0

    def count(self, reply: Reply, *, has_calls: bool, final: bool) -> None:
        effort = self.effort
        if self.context:
            effort.tool_output_tokens += max(0, reply.prompt_tokens - self.context)
        else:
            effort.prompt_tokens += reply.prompt_tokens
        self.context = reply.prompt_tokens + reply.sampled_tokens
        effort.sampled_tokens += reply.sampled_tokens
        effort.thinking_tokens += reply.thinking_tokens
        spoken = max(0, reply.sampled_tokens - reply.thinking_tokens)
        if has_calls:
            effort.tool_call_tokens += spoken
        elif final:
            effort.final_message_tokens += spoken

    def new_context(self) -> None:
        """The next reply is the first of a fresh context."""
        self.context = 0

    def reply_tokens(self, wanted: int) -> int:
        """How many tokens the next reply may have."""
        room = wanted
        if self.limits.sampled_tokens:
            room = min(room, self.limits.sampled_tokens - self.effort.sampled_tokens)
        if self.limits.context_tokens and self.context:
            room = min(room, self.limits.context_tokens - self.context)
        return max(1, room)

    def time_left(self) -> float:
        return self.deadline - time.monotonic()

    def reached(self) -> tuple[ExitStatus, str] | None:
        """The status that ends the episode now, and why; None while it may go on."""
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
