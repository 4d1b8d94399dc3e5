"""The episode of an external program, reconstructed from the requests that the gateway recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from woodshed.engine.settings import Truncation
from woodshed.gateway.errors import CONTEXT_FULL
from woodshed.gateway.key_limits import LIMIT_REACHED, KeyLimits, TurnUsage
from woodshed.gateway.segments_wire import Finished, shared, told
from woodshed.harness.endpoint import Reply
from woodshed.harness.episode import Budget, Episode, Message
from woodshed.harness.settings import LimitSettings
from woodshed.record.trajectory import Effort, ExitStatus, ToolEvent

from .program import ProgramExit


def key_limits(limits: LimitSettings, *, temperature: float, seed: int | None, truncation: Truncation) -> KeyLimits:
    """Convert the harness's limits to limits of a key: external programs do not enforce them, so the gateway does."""
    return KeyLimits(
        turns=limits.turns,
        sampled_tokens=limits.sampled_tokens,
        turn_tokens=limits.turn_tokens,
        context_tokens=limits.context_tokens,
        temperature=temperature,
        seed=seed,
        feedback=False,
        **truncation.changed(),
    )


def observe(finished: Finished, exit: ProgramExit, limits: LimitSettings) -> Episode:
    """Build the episode of a program.

    ``messages`` holds the conversations one after the other; messages with which two conversations both begin are kept
    once. ``events`` are the tool calls with the results that came back; their ``turn`` counts over all conversations.
    A program that writes its commands as plain text instead of tool calls has no events.
    """
    usage = [TurnUsage(**turn) for turn in finished.usage]
    messages: list[Message] = []
    events: list[ToolEvent] = []
    for conversation in told(finished.messages, finished.segments):
        events += _events(conversation, turns_before=_turns(messages))
        messages += conversation
    return Episode(_status(exit, finished), messages, events, _effort(usage, limits), error=exit.problem())


def last_reply_last(finished: Finished) -> Finished:
    """Return the same record with the conversation of the last reply at the end, where it shares no reply with others.

    What an agent says last is judged, and programs begin conversations aside: for a title, or with a sub-agent.
    """
    said, count = finished.messages, len(finished.segments)
    if not finished.usage or len(said) != count:
        return finished
    last = int(finished.usage[-1]["segment"])
    others = [n for n in range(count) if n != last]
    if last == count - 1 or any(m.get("role") == "assistant" for n in others for m in shared(said[last], said[n])):
        return finished
    order = [*others, last]
    return replace(
        finished,
        segments=[finished.segments[n] for n in order],
        messages=[said[n] for n in order],
        usage=[{**turn, "segment": order.index(int(turn["segment"]))} for turn in finished.usage],
    )


def at_limit(finished: Finished) -> bool:
    """Return whether the gateway refused a request because a limit of the harness was reached."""
    return not finished.refusals.keys().isdisjoint((LIMIT_REACHED, CONTEXT_FULL))


def _status(exit: ProgramExit, finished: Finished) -> ExitStatus:
    """Return the status of the episode. Even a program that failed has submitted the files in its box."""
    if exit.timed_out:
        return "timeout"
    return "limit" if exit.returncode and at_limit(finished) else "submitted"


def _effort(usage: Sequence[TurnUsage], limits: LimitSettings) -> Effort:
    """Count the effort as the built-in loop does (``Budget``), with one context for each segment."""
    effort = Effort()
    budgets: dict[int, Budget] = {}
    for turn in usage:
        if turn.segment not in budgets:
            budgets[turn.segment] = Budget(limits, effort)
        reply = Reply(
            message={},
            finish_reason="",
            prompt_tokens=turn.prompt_tokens,
            sampled_tokens=turn.sampled_tokens,
            thinking_tokens=turn.thinking_tokens,
        )
        budgets[turn.segment].count(reply, final=not turn.calls)
        effort.turns += 1
        effort.tool_calls += turn.calls
        effort.invalid_calls += bool(turn.parse_error)
    return effort


def _turns(messages: Sequence[Message]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)


def _events(conversation: Sequence[Message], *, turns_before: int) -> list[ToolEvent]:
    """Return the tool calls of a conversation; ``turns_before``: number of replies in earlier conversations."""
    results = {m.get("tool_call_id"): m.get("content") for m in conversation if m.get("role") == "tool"}
    events = []
    turn = turns_before
    for message in conversation:
        if message.get("role") != "assistant":
            continue
        turn += 1
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            arguments = _object(function.get("arguments"))
            result = _text(results.get(call.get("id")))
            events.append(ToolEvent(turn, str(function.get("name", "")), arguments, result))
    return events


def _text(content: Any) -> str:
    """Text of a tool's result, which is a string or a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


_ROOM = 100
"""Levels below Python's limit of nesting that arguments leave free: a trajectory is stored deeper in the stack."""


def _object(text: Any) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
        json.loads("[" * _ROOM + text + "]" * _ROOM)
    except (TypeError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def summary_tokens(finished: Finished, replies: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (segment, start, end) of the tokens of ``replies``, given as positions among the answered requests."""
    found = []
    for reply in replies:
        segment = int(finished.usage[reply]["segment"])
        before = [int(turn["sampled_tokens"]) for turn in finished.usage[:reply] if turn["segment"] == segment]
        sampled = np.flatnonzero(finished.segments[segment].sampled)[sum(before) :]
        count = int(finished.usage[reply]["sampled_tokens"])
        if count:
            found.append((segment, int(sampled[0]), int(sampled[count - 1]) + 1))
    return found
