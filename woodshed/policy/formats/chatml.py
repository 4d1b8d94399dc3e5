"""ChatML turns, shared by ``hermes`` and ``qwen3_coder``: everything but how tools and calls are written.

Results come back as ``<tool_response>`` blocks in a user turn (consecutive ones share it). Thinking stays in the
history, so that a longer conversation starts with the shorter one's text; Qwen3's own template drops it from earlier
turns. The published templates end each turn with a newline; here the next turn starts with it, so that a conversation
can stop at its stop token.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import FormatError, Message, Tool, text_content
from .grammar import Node, Reply, Seq, Text, any_of, optional, seq
from .reading import THINK, THINK_END, split_thinking, without_stop

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"

_CONTROL_IN_PROSE = re.compile(r"(</?tool_call>)")


class ChatML(ABC):
    """Turns of a ChatML conversation. See the module's docstring and ``ChatFormat``."""

    special_tokens: tuple[str, ...] = (
        END_OF_TEXT,
        START,
        END,
        CALL,
        CALL_END,
        RESPONSE,
        RESPONSE_END,
        THINK,
        THINK_END,
    )
    stop_tokens: tuple[str, ...] = (END, END_OF_TEXT)
    begin_token: str | None = None
    after_results = ""
    """Text between the last result of a turn and the turn's end."""
    marks: tuple[str, ...] = ()
    """Texts that begin a call, besides its token."""

    @abstractmethod
    def calls(self, message: Message, tools: Sequence[Tool], *, after_text: bool) -> list[Piece]:
        """Render the calls of an assistant's message; ``after_text``: the turn has content before them."""

    @abstractmethod
    def call_grammar(self, name: str, schema: Mapping[str, Any] | None) -> Node:
        """Return the grammar of a call of that tool, after the token that begins it; without ``schema`` the arguments
        may be any object."""

    def reply_grammar(self, reply: Reply) -> Node | None:
        begin = Piece(CALL, True)
        thinking = seq(
            Piece(THINK, True), Text(end=Piece(THINK_END, True)), optional(any_of([Piece("\n\n"), Piece("\n")]))
        )
        rest: list[Node] = []
        if reply.tools:
            call = any_of([self.call_grammar(name, schema) for name, schema in reply.functions()])
            rest = [call, *reply.rest(Seq((begin, call)), Piece("\n"))]
        body = reply.options(
            calls=Seq((begin, *rest)),
            text=Text(without=(CALL, *self.marks)),
            text_and_calls=Seq((Text(end=begin, without=self.marks), *rest)),
        )
        return Seq((optional(thinking), body))

    def content(self, message: Message) -> str:
        """Return the text of an assistant's message."""
        return text_content(message)

    def message(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        return self.messages([message], tools)[0]

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[Piece]]:
        roles = [m.get("role") for m in messages]
        out = []
        for i, message in enumerate(messages):
            role = roles[i]
            if role == "tool":
                pieces = [] if i and roles[i - 1] == "tool" else _turn("user")[:-1] + [Piece("user")]
                pieces += [Piece("\n"), Piece(RESPONSE, True), Piece("\n"), Piece(text_content(message)), Piece("\n")]
                pieces.append(Piece(RESPONSE_END, True))
                if roles[i + 1 : i + 2] != ["tool"]:
                    pieces += [Piece(self.after_results)] if self.after_results else []
                    pieces.append(Piece(END, True))
            elif role == "assistant":
                pieces = [*self.generation(), *self._assistant(message, tools), Piece(END, True)]
            elif role in ("user", "system", "developer"):
                word = "user" if role == "user" else "system"
                pieces = [*_turn(word), Piece(text_content(message)), Piece(END, True)]
            else:
                raise FormatError(f"message role {role!r} is unknown; known: system, user, assistant, tool")
            out.append(pieces)
        return out

    def generation(self) -> list[Piece]:
        return _turn("assistant")

    def _assistant(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        pieces: list[Piece] = []
        thinking = message.get("reasoning_content")
        if isinstance(thinking, str) and thinking:
            pieces += [Piece(THINK, True), Piece(f"\n{thinking}\n"), Piece(THINK_END, True), Piece("\n\n")]
        content = self.content(message)
        if content:
            pieces.append(Piece(content))
        return pieces + self.calls(message, tools, after_text=bool(content))


def _turn(role: str) -> list[Piece]:
    return [Piece("\n"), Piece(START, True), Piece(role + "\n")]


def open_completion(text: str) -> tuple[str | None, str]:
    """Split a completion into thinking and the rest, without stop token and the newlines around the thinking."""
    thinking, rest = split_thinking(without_stop(text, ChatML.stop_tokens))
    if thinking is None:
        return None, rest
    thinking = thinking.removeprefix("\n").removesuffix("\n")
    return thinking, rest.removeprefix("\n\n") if rest.startswith("\n\n") else rest.removeprefix("\n")


def instruction(text: str) -> list[Piece]:
    """Split an instruction that shows the markers of a call into pieces, with the markers as control tokens."""
    return [Piece(t, t in (CALL, CALL_END)) for t in _CONTROL_IN_PROSE.split(text) if t]
