"""Contract of a chat format (conversation -> pieces of text, sampled text -> message), and how it reads messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from woodshed.policy.tokenizer import Piece

from .grammar import Node, Reply

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


class FormatError(ValueError):
    """A message or a tool schema cannot be rendered; the error says which and why."""


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy made it. ``arguments_json`` is the text of a JSON object; required fields may be missing."""

    id: str
    name: str
    arguments_json: str


@dataclass(frozen=True)
class ParsedMessage:
    """Content and calls of a completion. ``error`` says why a call could not be read; the rest holds what could."""

    content: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    thinking: str | None = None
    error: str | None = None


class ChatFormat(Protocol):
    """Renders OpenAI chat messages and parses completions. Stateless.

    The tokens of a conversation are ``open(tools, system)``, then ``message`` of each further message, then
    ``generation()`` if the policy's turn follows. So the pieces of a longer conversation start with those of a shorter
    one. ``generation()`` and a completion add up to ``message`` of the assistant's message, which ends with its stop
    token.
    """

    name: str
    special_tokens: tuple[str, ...]
    """Control tokens of a vocabulary that is made for this format."""
    begin_token: str | None
    """Token that begins every conversation, or None."""
    signature: tuple[str, ...]
    """Control tokens that identify a vocabulary made for this format."""
    template_mark: str
    """Text that chat templates of this format contain and those of other formats with the same vocabulary do not."""
    stop_tokens: tuple[str, ...]
    """Tokens that end a completion. The first is the one that an assistant's message ends with."""

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """Render the beginning. ``system`` is the text of a leading system message, which is not rendered again."""
        ...

    def message(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        """Render one message by itself. Raises FormatError if the format cannot express it."""
        ...

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[Piece]]:
        """Render consecutive messages, pieces per message; results of parallel calls may share a turn here."""
        ...

    def generation(self) -> list[Piece]:
        """Return the pieces that begin the policy's turn."""
        ...

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Parse a completion, with or without its stop token. Never raises, whatever the policy wrote."""
        ...

    def reply_grammar(self, reply: Reply) -> Node | None:
        """Return the grammar of completions that ``parse`` reads as such a reply; None if every completion is one.

        Raises GrammarRefused if the format cannot force such a reply.
        """
        ...

    def chat_template(self) -> str | None:
        """Return a Jinja chat template for other programs, or None if the format cannot be written as one."""
        ...


MEMBERS = tuple(sorted({*ChatFormat.__annotations__, *(m for m in vars(ChatFormat) if not m.startswith("_"))}))
"""Names of the attributes and methods that a chat format must have."""


def conversation(
    chat: ChatFormat, messages: Sequence[Message], tools: Sequence[Tool] = (), *, generate: bool = True
) -> list[Piece]:
    """Return all pieces of a conversation; a leading system message goes to ``open``."""
    system = None
    if messages and messages[0].get("role") == "system":
        system, messages = text_content(messages[0]), messages[1:]
    pieces = chat.open(tools, system)
    for part in chat.messages(messages, tools):
        pieces += part
    return pieces + chat.generation() if generate else pieces


def text_content(message: Message) -> str:
    """Return the text of a message whose content is a string, null, or a list of text parts. Raises FormatError."""
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = []
        for part in content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise FormatError(f"message content part of type {kind!r} is not text; only text is supported")
        return "".join(texts)
    raise FormatError(f"message content must be text, got {type(content).__name__}")


def function_of(tool: Tool) -> Mapping[str, Any]:
    """Return the function of an OpenAI tool schema, given as ``{"type": "function", "function": ...}`` or bare."""
    function = tool.get("function", tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise FormatError(f"tool schema without a function name: {tool!r}")
    return function


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the schema as ``{"type": "function", "function": ...}``, without ``x-compact``, which only ``compact``
    reads."""
    return {"type": "function", "function": {k: v for k, v in function_of(tool).items() if k != "x-compact"}}


def calls_of(message: Message) -> list[tuple[str, str]]:
    """Return (name, arguments as JSON text) of each call in an assistant message's ``tool_calls``."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise FormatError(f"assistant message has a tool call without function.name: {call!r}")
        arguments = function.get("arguments", "{}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append((function["name"], arguments))
    return calls
