"""``qwen3_coder``: ChatML turns with calls in tags and raw values, as Qwen3-Coder writes them.

::

    <tool_call>
    <function=edit_line>
    <parameter=line>
    2
    </parameter>
    </function>
    </tool_call>

Values are not escaped, so a value cannot contain ``</parameter>`` directly followed by ``<parameter=...>`` or
``</function>``; other tags in it are text. Types come from the tool's schema (``reading.read_value``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import Message, ParsedMessage, Tool, ToolCall, calls_of, text_content
from .chatml import CALL, CALL_END, END, RESPONSE, START, ChatML, instruction, open_completion
from .grammar import Node, seq
from .qwen3_coder_grammar import parameters_grammar
from .qwen3_coder_template import CALLING, TEMPLATE, tool_list
from .reading import Types, new_call_id, parameter_types, read_json_at, read_json_object, read_value, write_value

DEFAULT_SYSTEM = "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."

# The published models sometimes omit the outer tag; then the call begins a line.
_BEGIN = re.compile(r"<tool_call>\s*(?:<function=([^<>\n]+)>)?|^<function=([^<>\n]+)>", re.MULTILINE)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>\s*(?=<parameter=[^<>\n]+>|</function>)")
_CLOSE = re.compile(r"\s*</function>(?:\s*</tool_call>)?")


class Qwen3CoderFormat(ChatML):
    """See the module's docstring and ``ChatFormat``."""

    name = "qwen3_coder"
    signature: tuple[str, ...] = (START, END, CALL, RESPONSE)
    template_mark = "<function="
    after_results = "\n"
    marks = ("<function=",)

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """Render the system turn, which every conversation has; the published template omits an empty one."""
        pieces = [Piece(START, True), Piece("system\n"), Piece(DEFAULT_SYSTEM if system is None else system)]
        if tools:
            pieces += [Piece(tool_list(tools)), *instruction(CALLING)]
        return [*pieces, Piece(END, True)]

    def content(self, message: Message) -> str:
        text = text_content(message)
        return text.strip() if message.get("tool_calls") else text

    def calls(self, message: Message, tools: Sequence[Tool], *, after_text: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for i, (name, arguments) in enumerate(calls_of(message)):
            if i or after_text:
                pieces.append(Piece("\n" if i else "\n\n"))
            body = f"\n<function={name}>\n{_parameters(arguments)}</function>\n"
            pieces += [Piece(CALL, True), Piece(body), Piece(CALL_END, True)]
        return pieces

    def call_grammar(self, name: str, schema: Mapping[str, Any] | None) -> Node:
        end = Piece(CALL_END, True)
        return seq(f"\n<function={name}>\n", *parameters_grammar(name, schema), "</function>\n", end)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Read calls; text around them is the content. A call that cannot be read stays in the content and sets
        ``error``."""
        thinking, text = open_completion(text)
        reader = _Reader(text, tools)
        calls: list[ToolCall] = []
        kept: list[str] = []
        error: str | None = None
        done = at = 0
        while begin := _BEGIN.search(text, at):
            call, at = reader.read(begin)
            if call is None:
                error = error or reader.problem
                continue
            calls.append(call)
            kept.append(text[done : begin.start()])
            done = at
        kept.append(text[done:])
        content = "\n".join(part for part in map(str.rstrip, kept) if part) if calls else text
        return ParsedMessage(content, calls, thinking, error)

    def chat_template(self) -> str | None:
        return TEMPLATE


class _Reader:
    """Reads the calls of one text, in time linear in its length."""

    def __init__(self, text: str, tools: Sequence[Tool]) -> None:
        self.text = text
        self.tools = tools
        self.problem: str | None = None
        self._no_value_ends = False

    def read(self, begin: re.Match[str]) -> tuple[ToolCall | None, int]:
        """Read the call at ``begin``; return it, or None with ``problem`` set, and the index to go on from."""
        name, at = begin[1] or begin[2], begin.end()
        if name is None:
            self.problem = "tool call without <function=NAME>"
            return None, at
        types = parameter_types(self.tools, name)
        arguments = {}
        while parameter := _PARAMETER.match(self.text, at):
            key, at = parameter[1], parameter.end()
            end = self._behind_json(at, types.get(key, frozenset()))
            if end is None and not self._no_value_ends:
                end = _VALUE_END.search(self.text, at)
            if end is None:
                self._no_value_ends = True
                where = "before <parameter=NAME> or </function>"
                self.problem = f"tool call {name}: parameter {key} without </parameter> {where}"
                return None, at
            if key in arguments:
                self.problem = f"tool call {name}: parameter {key} appears twice"
                return None, end.end()
            arguments[key] = read_value(self.text[at : end.start()], types.get(key, frozenset()))
            at = end.end()
        close = _CLOSE.match(self.text, at)
        if close is None:
            self.problem = f"tool call {name}: expected <parameter=NAME> or </function>"
            return None, at
        return ToolCall(new_call_id(), name, json.dumps(arguments, ensure_ascii=False)), close.end()

    def _behind_json(self, at: int, types: Types) -> re.Match[str] | None:
        """Find the end of a value that must be an array or an object by reading it as JSON: its strings may contain
        the text that ends a value elsewhere."""
        if not types or not types <= {"array", "object", "null"}:
            return None
        try:
            _, end = read_json_at(self.text, at)
        except ValueError:
            return None
        return _VALUE_END.match(self.text, end)


def _parameters(arguments: str) -> str:
    """Render the parameters' lines. Arguments that are not a JSON object are shown as they were written."""
    try:
        values = read_json_object(arguments or "{}")
    except ValueError:
        return arguments + "\n"
    return "".join(f"<parameter={key}>\n{write_value(value)}\n</parameter>\n" for key, value in values.items())
