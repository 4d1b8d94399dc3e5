"""Runs the calls of one reply: neighbouring read-only calls concurrently, all others one by one in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from woodshed.harness.tools.base import ToolResult, clean
from woodshed.harness.tools.finish import Finish
from woodshed.record.trajectory import ToolEvent

from .episode import Call, Message, Moment, Reaction
from .errors import ToolError
from .registry import ToolRegistry
from .session import Session

Notify = Callable[[Moment], Awaitable[Reaction]]


def calls_of(message: Message, turn: int) -> list[Call]:
    """Return the calls of an assistant message. A call without an id gets one, also in the message."""
    calls = []
    listed = message.get("tool_calls")
    for index, raw in enumerate(listed if isinstance(listed, list) else []):
        if not raw.get("id"):
            raw["id"] = f"call_{turn}_{index}"
        function = raw.get("function")
        function = function if isinstance(function, dict) else {}
        arguments = function.get("arguments") or ""
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(Call(str(raw["id"]), str(function.get("name") or ""), text))
    return calls


def is_final(message: Message) -> bool:
    """Return whether a reply is a message to the user: it has no call, or only calls of ``finish``."""
    listed = message.get("tool_calls")
    functions = [raw.get("function") for raw in listed] if isinstance(listed, list) else []
    return all(isinstance(f, dict) and f.get("name") == Finish.name for f in functions)


@dataclass
class Runner:
    registry: ToolRegistry
    session: Session
    notify: Notify | None = None

    async def run(self, calls: list[Call], turn: int) -> list[ToolEvent]:
        """Run the calls; return one event for each, in order. Raises SandboxError after all calls have ended."""
        allowed = self.session.settings.limits.calls_per_turn
        events: list[ToolEvent] = []
        for shared, stage in groupby(enumerate(calls), key=lambda item: self.registry.read_only(item[1].name)):
            batch = [call for index, call in stage if index < allowed]
            if shared and len(batch) > 1:
                events += await _together([self._one(call, turn) for call in batch])
            else:
                events += [await self._one(call, turn) for call in batch]
        for call in calls[allowed:]:
            error = self.registry.error(ToolError("too_many_calls", f"only the first {allowed} calls were run"))
            events.append(ToolEvent(turn, call.name, None, error.text, error.error, call.arguments))
        return events

    async def _one(self, call: Call, turn: int) -> ToolEvent:
        started = time.perf_counter()
        arguments: dict[str, Any] | None = None
        raw: str | None = None
        result: ToolResult
        if self.session.finished:
            result = self.registry.error(ToolError("not_executed", "the work was already submitted"))
        elif time.monotonic() >= self.session.deadline:
            result = self.registry.error(ToolError("not_executed", "the time is up"))
        else:
            reaction = await self.notify(Moment("call", turn, call=call)) if self.notify else None
            try:
                tool, args = self.registry.parse(call.name, call.arguments)
                arguments = args.model_dump(mode="json", exclude_unset=True)
                if isinstance(reaction, ToolResult):
                    result = reaction
                else:
                    result = await self.registry.run(tool, args, self.session)
            except ToolError as error:
                raw = call.arguments
                result = reaction if isinstance(reaction, ToolResult) else self.registry.error(error)
        if self.notify:
            await self.notify(Moment("result", turn, call=call, result=result))
        seconds = time.perf_counter() - started
        name = clean(call.name)
        return ToolEvent(turn, name, arguments, result.text, result.error, raw, seconds, result.exit_code)


async def _together(work: list[Any]) -> list[ToolEvent]:
    """Run the calls concurrently; if one fails, cancel and await the rest before raising."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
