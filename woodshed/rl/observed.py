"""The episode of a program that only the gateway saw: its turns, calls and effort, read off the recorded requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ..gateway.errors import CONTEXT_FULL
from ..gateway.segments_wire import Finished
from ..gateway.terms import LIMIT_REACHED, Terms, TurnUsage
from ..harness.budget import Budget
from ..harness.endpoint import Reply
from ..harness.episode import Episode, Message
from ..harness.program import Ended
from ..harness.settings import LimitSettings
from ..record.trajectory import Effort, ExitStatus, ToolEvent


def terms_of(limits: LimitSettings, *, temperature: float, seed: int | None) -> Terms:
    """The harness's limits for the gateway to keep, where the program is not ours."""
    return Terms(
        turns=limits.turns, sampled_tokens=limits.sampled_tokens, turn_tokens=limits.turn_tokens,
        context_tokens=limits.context_tokens, temperature=temperature, seed=seed,
    )  # fmt: skip


def observe(finished: Finished, ended: Ended, limits: LimitSettings) -> Episode:
    """``messages``: the conversations one after the other. ``events``: calls with the results that came back.

    An agent that wraps its commands in text instead of tool calls has no events.
    """
    usage = [TurnUsage(**turn) for turn in finished.usage]
    messages = [message for conversation in finished.messages for message in conversation]
    events = [event for conversation in finished.messages for event in _events(conversation)]
    return Episode(_status(ended, finished), messages, events, _effort(usage, limits), error=ended.why())


def at_limit(finished: Finished) -> bool:
    """Whether the gateway refused a request for one of the harness's limits."""
    return not finished.refusals.keys().isdisjoint((LIMIT_REACHED, CONTEXT_FULL))


def _status(ended: Ended, finished: Finished) -> ExitStatus:
    """A program that failed has still handed in what lies in its box; ``error`` says that it failed."""
    if ended.timed_out:
        return "timeout"
    return "limit" if ended.returncode and at_limit(finished) else "submitted"


def _effort(usage: Sequence[TurnUsage], limits: LimitSettings) -> Effort:
    """Counted as our own loop counts (``Budget``), each segment a context of its own."""
    effort = Effort()
    budgets: dict[int, Budget] = {}
    for turn in usage:
        budget = budgets.setdefault(turn.segment, Budget(limits, effort))
        reply = Reply({}, "", turn.prompt_tokens, turn.sampled_tokens, turn.thinking_tokens)
        budget.count(reply, has_calls=turn.calls > 0, final=turn is usage[-1])
        effort.turns += 1
        effort.tool_calls += turn.calls
        effort.invalid_calls += bool(turn.parse_error)
    return effort


def _events(conversation: Sequence[Message]) -> list[ToolEvent]:
    results = {m.get("tool_call_id"): m.get("content") for m in conversation if m.get("role") == "tool"}
    events, turn = [], 0
    for message in conversation:
        if message.get("role") != "assistant":
            continue
        turn += 1
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            raw = function.get("arguments")
            result = results.get(call.get("id"))
            text = result if isinstance(result, str) else "" if result is None else json.dumps(result)
            events.append(ToolEvent(turn, str(function.get("name", "")), _object(raw), text, raw=None))
    return events


def _object(text: Any) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return None
    return value if isinstance(value, dict) else None
