"""The episode of a program that only the gateway saw: its turns, calls and effort, read off the recorded requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from woodshed.gateway.errors import CONTEXT_FULL
from woodshed.gateway.key_limits import LIMIT_REACHED, KeyLimits, TurnUsage
from woodshed.gateway.segments_wire import Finished
from woodshed.harness.endpoint import Reply
from woodshed.harness.episode import Budget, Episode, Message
from woodshed.harness.settings import LimitSettings
from woodshed.record.trajectory import Effort, ExitStatus, ToolEvent

from .program import Ended


def terms_of(limits: LimitSettings, *, temperature: float, seed: int | None) -> KeyLimits:
    """The harness's limits for the gateway to keep, where the program is not ours."""
    return KeyLimits(
        turns=limits.turns,
        sampled_tokens=limits.sampled_tokens,
        turn_tokens=limits.turn_tokens,
        context_tokens=limits.context_tokens,
        temperature=temperature,
        seed=seed,
        feedback=False,
    )


def observe(finished: Finished, ended: Ended, limits: LimitSettings) -> Episode:
    """``messages``: the conversations one after the other, what a branch repeats left out. ``events``: calls with the
    results that came back, ``turn`` counted over all conversations.

    An agent that wraps its commands in text instead of tool calls has no events.
    """
    usage = [TurnUsage(**turn) for turn in finished.usage]
    messages: list[Message] = []
    events: list[ToolEvent] = []
    for number, conversation in enumerate(finished.messages):
        known = max((_common(conversation, earlier) for earlier in finished.messages[:number]), default=0)
        messages += conversation[known:]
        events += _events(conversation[known:], _turns(messages) - _turns(conversation[known:]))
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


def _common(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two conversations begin with alike: a branch repeats what came before it."""
    return next((n for n, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _turns(messages: Sequence[Message]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)


def _events(conversation: Sequence[Message], turn: int) -> list[ToolEvent]:
    """``turn``: replies before this conversation's first."""
    results = {m.get("tool_call_id"): m.get("content") for m in conversation if m.get("role") == "tool"}
    events = []
    for message in conversation:
        if message.get("role") != "assistant":
            continue
        turn += 1
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            raw = function.get("arguments")
            text = _text(results.get(call.get("id")))
            events.append(ToolEvent(turn, str(function.get("name", "")), _object(raw), text))
    return events


def _text(content: Any) -> str:
    """Of a tool's result: plain, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _object(text: Any) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
