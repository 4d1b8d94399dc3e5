"""SFT on conversations of one's own: JSON lines in the format of OpenAI's fine-tuning, each with ``messages`` and
``tools``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from woodshed.policy.formats.base import ChatFormat, FormatError, calls_of, text_content
from woodshed.policy.tokenizer import Tokenizer

from .examples import Example
from .render import render_conversation

ROLES = ("system", "developer", "user", "assistant", "tool")


class ConversationError(ValueError):
    """A file cannot be learned from; the message names file, line and field."""


@dataclass(frozen=True)
class Conversation:
    """``weights``: loss weight of each reply; ``where``: file and line, for messages to people."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    weights: list[float]
    where: str


def read_conversations(paths: Iterable[Path]) -> Iterator[Conversation]:
    """Yield the conversations of the files in their order. Raises ConversationError."""
    for path in paths:
        found = False
        if path.exists() and not path.is_file():
            raise ConversationError(f"{path}: is no file; it is read twice, so it cannot be a pipe or a device")
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        found = True
                        yield _conversation(line, f"{path}:{number}")
        except OSError as error:
            raise ConversationError(f"{path}: cannot be read: {error.strerror}") from None
        if not found:
            raise ConversationError(f"{path}: is empty; it should have one conversation on each line")


def render_conversations(
    paths: Iterable[Path],
    chat: ChatFormat,
    tokenizer: Tokenizer,
    max_tokens: int,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[list[Example], int]:
    """Return the conversations of the files as examples of at most ``max_tokens`` tokens, and how many were cut.

    ``progress`` is told the number of those that are done. Raises ConversationError.
    """
    examples: list[Example] = []
    cut = 0
    for each in read_conversations(paths):
        try:
            tokens, own = render_conversation(each.messages, each.tools, chat, tokenizer, each.weights)
        except ValueError as error:
            raise ConversationError(f"{each.where}: {error}") from None
        cut += len(tokens) > max_tokens
        examples.append(Example(tokens[:max_tokens], own[:max_tokens]))
        if len(examples) % 500 == 0:
            progress(len(examples))
    return examples, cut


def _conversation(line: bytes, where: str) -> Conversation:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConversationError(f"{where}: not JSON: {error}") from None
    given, tools = (row.get("messages"), row.get("tools")) if isinstance(row, dict) else (None, None)
    tools = [] if tools is None else tools
    if not isinstance(given, list) or not given:
        raise ConversationError(f'{where}: has no list of messages; write {{"messages": [...], "tools": [...]}}')
    if not isinstance(tools, list) or not all(_is_tool(tool) for tool in tools):
        raise ConversationError(f'{where}: tools: each is {{"type": "function", "function": {{"name": ...}}}}')
    messages = [_message(each, f"{where}: messages[{i}]") for i, each in enumerate(given)]
    weights = [message.pop("weight") for message in messages if message["role"] == "assistant"]
    if not any(weights):
        raise ConversationError(f"{where}: no reply to learn from: no message of the assistant with a weight above 0")
    return Conversation(messages, tools, weights, where)


def _is_tool(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _message(given: Any, where: str) -> dict[str, Any]:
    """Return a message as the gateway takes it; one of the assistant also has its ``weight``, 1 if none was given."""
    if not isinstance(given, dict) or given.get("role") not in ROLES:
        raise ConversationError(f"{where}: needs a role, one of {', '.join(ROLES)}")
    try:
        text_content(given)
        if not isinstance(given.get("tool_calls"), list | None):
            raise FormatError("tool_calls is no list")
        calls_of(given)
    except FormatError as error:
        raise ConversationError(f"{where}: {error}") from None
    if given["role"] != "assistant":
        return given
    weight = given.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
        raise ConversationError(f"{where}: weight is {weight!r}, and should be a number from 0 to 1")
    return {**given, "weight": float(weight)}
