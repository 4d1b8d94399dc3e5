"""``hermes``: ChatML turns with JSON tool calls, as Hermes and Qwen instruct models write them.

The system turn lists the tools as JSON lines; each call is a ``<tool_call>`` block of ``{"name", "arguments"}``. The
turns themselves are in ``chatml``. ``TEMPLATE`` is the same format as a Jinja chat template, for programs that open a
saved policy (transformers, vLLM).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import Message, ParsedMessage, Tool, ToolCall, calls_of, schema_of
from .chatml import CALL, CALL_END, END, START, ChatML, instruction, open_completion
from .grammar import Node, arguments_of, seq
from .reading import call_of_json, read_json_at, read_json_object, skip_blanks

TEMPLATE = r"""
{%- set ns = namespace(start=0) %}
{{- '<|im_start|>system\n' }}
{%- if messages and messages[0].role == 'system' %}
    {%- set ns.start = 1 %}
    {{- messages[0].content }}
{%- else %}
    {{- 'You are a helpful assistant.' }}
{%- endif %}
{%- if tools %}
    {{- "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" }}
    {{- "You are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments" }}
    {{- " within <tool_call></tool_call> XML tags:\n<tool_call>\n" }}
    {{- "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}
{%- endif %}
{{- '<|im_end|>' }}
{%- for message in messages[ns.start:] %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '\n<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- '\n<|im_start|>assistant\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}
                {{- '\n' }}
            {%- endif %}
            {%- set function = call.function if call.function else call %}
            {{- '<tool_call>\n{"name": ' }}
            {{- function.name | tojson }}
            {{- ', "arguments": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
    {%- else %}
        {{- '\n<|im_start|>' + ('user' if message.role == 'user' else 'system') + '\n' }}
        {{- message.content }}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '\n<|im_start|>assistant\n' }}
{%- endif %}
"""


DEFAULT_SYSTEM = "You are a helpful assistant."

_TOOLS_BEFORE = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class HermesFormat(ChatML):
    """See the module's docstring and ``ChatFormat``."""

    name = "hermes"
    signature: tuple[str, ...] = (START, END)
    template_mark = "<function-name>"

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """Render the system turn, which every conversation has, as in Qwen2.5, with a default text."""
        pieces = [Piece(START, True), Piece("system\n"), Piece(DEFAULT_SYSTEM if system is None else system)]
        if tools:
            lines = "".join("\n" + json.dumps(schema_of(tool), ensure_ascii=False) for tool in tools)
            pieces += [Piece(_TOOLS_BEFORE + lines), *instruction(_TOOLS_AFTER)]
        return [*pieces, Piece(END, True)]

    def calls(self, message: Message, tools: Sequence[Tool], *, after_text: bool) -> list[Piece]:
        pieces: list[Piece] = []
        for i, (name, arguments) in enumerate(calls_of(message)):
            if i or after_text:
                pieces.append(Piece("\n"))
            body = f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}\n'
            pieces += [Piece(CALL, True), Piece(body), Piece(CALL_END, True)]
        return pieces

    def call_grammar(self, name: str, schema: Mapping[str, Any] | None) -> Node:
        head = f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        return seq(head, arguments_of(schema), "}\n", Piece(CALL_END, True))

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Read calls; text before and after them is the content. A block that is not a call stays in the content and
        sets ``error``."""
        thinking, text = open_completion(text)
        calls: list[ToolCall] = []
        kept: list[str] = []
        error: str | None = None
        end = 0
        while (start := text.find(CALL, end)) >= 0:
            call, problem, after = _read_call(text, start + len(CALL))
            error = error or problem
            before = text[end:start]
            if call is None:
                kept.append(before + text[start:after])
            else:
                calls.append(call)
                kept.append(before[:-1] if before.endswith("\n") else before)
            end = after
        kept.append(text[end:])
        return ParsedMessage("".join(kept), calls, thinking, error)

    def chat_template(self) -> str | None:
        return TEMPLATE


def _read_call(text: str, start: int) -> tuple[ToolCall | None, str | None, int]:
    """Read the call after its token; return it, what is wrong with it, and the index to go on from.

    A JSON object is read to its own end first, because its strings may contain the text that ends a call.
    """
    try:
        data, end = read_json_at(text, start)
        end = skip_blanks(text, end)
        if text.startswith(CALL_END, end) and isinstance(data, dict):
            return *call_of_json(data, "arguments"), end + len(CALL_END)
    except ValueError:
        pass
    end = text.find(CALL_END, start)
    if end < 0:
        return None, "tool call without </tool_call>", len(text)
    try:
        data = read_json_object(text[start:end])
    except ValueError as error:
        return None, f"tool call is not a JSON object: {error}", end + len(CALL_END)
    return *call_of_json(data, "arguments"), end + len(CALL_END)
