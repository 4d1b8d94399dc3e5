"""Server-sent chat completion chunks, put back together into one completion."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any


async def collect(lines: AsyncIterator[str], on_text: Callable[[str], None]) -> dict[str, Any]:
    """The completion that the chunks add up to; every piece of content is passed on as it comes.

    A stream that ends without a finish reason yields a completion without choices, which is retried as broken.
    """
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    finish: str | None = None
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            break
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        for choice in (chunk.get("choices") or [])[:1]:
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            for name in ("content", "reasoning_content", "reasoning", "parse_error"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            if delta.get("content"):
                on_text(delta["content"])
            for part in delta.get("tool_calls") or []:
                _add(calls, part)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choices = [] if finish is None else [{"index": 0, "message": message, "finish_reason": finish}]
    return {"choices": choices, "usage": usage}


def _add(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(int(part.get("index") or 0), empty)
    call["id"] = part.get("id") or call["id"]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
