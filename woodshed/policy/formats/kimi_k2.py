"""``kimi_k2``: role tokens and a section of calls, as Kimi K2 instruct models write them.

::

    <|tool_calls_section_begin|><|tool_call_begin|>functions.grep:0<|tool_call_argument_begin|>{"pattern": "x"}
    <|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>tool<|im_middle|>## Return of functions.grep:0
    ...

(without the line breaks between tokens). The id names the tool and counts the calls of the conversation. Clients see
the id that the policy wrote, and the header of a result has the id that the client sent with it. Thinking stays in the
history; Kimi-K2-Thinking's empty ``<think></think>`` blocks are not written.

``TEMPLATE`` is the same format as a Jinja chat template, for programs that open a saved policy (transformers, vLLM); it
writes ids of calls as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import FormatError, Message, ParsedMessage, Tool, ToolCall, calls_of, schema_of, text_content
from .grammar import Node, Reply, Seq, Text, any_of, arguments_of, optional, seq
from .reading import THINK, THINK_END, read_json_at, skip_blanks, split_thinking, without_stop

TEMPLATE = r"""
{%- macro head(mark, message, word) %}
    {{- '<|im_' + mark + '|>' + (message.name or word) + '<|im_middle|>' }}
{%- endmacro %}
{%- set ns = namespace(start=0) %}
{%- if tools %}
    {{- '<|im_system|>tool_declare<|im_middle|>' }}
    {{- tools | tojson(separators=(',', ':'), sort_keys=true) }}
    {{- '<|im_end|>' }}
{%- endif %}
{{- '<|im_system|>system<|im_middle|>' }}
{%- if messages and messages[0].role == 'system' %}
    {%- set ns.start = 1 %}
    {{- messages[0].content }}
{%- else %}
    {{- 'You are Kimi, an AI assistant created by Moonshot AI.' }}
{%- endif %}
{{- '<|im_end|>' }}
{%- for message in messages[ns.start:] %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_assistant|>assistant<|im_middle|>' }}
        {%- if message.reasoning_content %}
            {{- '<think>' + message.reasoning_content + '</think>' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {{- '<|tool_calls_section_begin|>' }}
            {%- for call in message.tool_calls %}
                {{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' }}
                {%- if call.function.arguments is string %}
                    {{- call.function.arguments or '{}' }}
                {%- else %}
                    {{- call.function.arguments | tojson }}
                {%- endif %}
                {{- '<|tool_call_end|>' }}
            {%- endfor %}
            {{- '<|tool_calls_section_end|>' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {{- head('system', message, 'tool') + '## Return of ' + message.tool_call_id + '\n' + message.content }}
    {%- elif message.role == 'user' %}
        {{- head('user', message, 'user') + message.content }}
    {%- else %}
        {{- head('system', message, 'system') + message.content }}
    {%- endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_assistant|>assistant<|im_middle|>' }}
{%- endif %}
"""


BEGIN, END_OF_TEXT, END = "[BOS]", "[EOS]", "<|im_end|>"
SYSTEM, USER, ASSISTANT, MIDDLE = "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>"
SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENT, CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."

_ID = re.compile(r"(?:functions\.)?(.+):(\d{1,9})", re.DOTALL)
_CALL = re.compile(r"<\|tool_call_begin\|>([^<]*)<\|tool_call_argument_begin\|>")
_NEXT = re.compile(r"<\|tool_call_begin\|>|<\|tool_call_end\|>|<\|tool_calls_section_end\|>")


class KimiK2Format:
    """See the module's docstring and ``ChatFormat``."""

    name = "kimi_k2"
    special_tokens: tuple[str, ...] = (
        BEGIN,
        END_OF_TEXT,
        END,
        USER,
        ASSISTANT,
        SYSTEM,
        SECTION,
        SECTION_END,
        CALL,
        ARGUMENT,
        CALL_END,
        MIDDLE,
        THINK,
        THINK_END,
    )
    stop_tokens: tuple[str, ...] = (END, END_OF_TEXT)
    begin_token: str | None = None
    signature: tuple[str, ...] = (END, USER, ASSISTANT, SYSTEM, MIDDLE, SECTION, CALL)
    template_mark = SECTION

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """Render the tools as JSON with sorted keys, then the system turn, which every conversation has."""
        pieces: list[Piece] = []
        if tools:
            schemas = [schema_of(tool) for tool in tools]
            text = json.dumps(schemas, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
            pieces += [*_head(SYSTEM, "tool_declare"), Piece(text), Piece(END, True)]
        return [
            *pieces,
            *_head(SYSTEM, "system"),
            Piece(DEFAULT_SYSTEM if system is None else system),
            Piece(END, True),
        ]

    def message(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        return self.messages([message], tools)[0]

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[Piece]]:
        """Render messages. Calls whose ids do not name their tool (those of a client or a demonstration) are numbered
        from 0 within ``messages``."""
        out: list[list[Piece]] = []
        renamed: dict[Any, str] = {}
        count = 0
        for message in messages:
            role, text = message.get("role"), text_content(message)
            if role == "assistant":
                pieces, count = _assistant(message, text, renamed, count)
            elif role == "tool":
                call_id = message.get("tool_call_id")
                if not isinstance(call_id, str):
                    raise FormatError("the kimi_k2 format needs tool_call_id in a tool message")
                head = f"## Return of {renamed.get(call_id, call_id)}\n"
                pieces = [*_head(SYSTEM, message.get("name") or "tool"), Piece(head), Piece(text)]
            elif role in ("user", "system", "developer"):
                mark, word = (USER, "user") if role == "user" else (SYSTEM, "system")
                pieces = [*_head(mark, message.get("name") or word), Piece(text)]
            else:
                raise FormatError(f"message role {role!r} is unknown; known: system, user, assistant, tool")
            out.append([*pieces, Piece(END, True)])
        return out

    def generation(self) -> list[Piece]:
        return _head(ASSISTANT, "assistant")

    def reply_grammar(self, reply: Reply) -> Node | None:
        thinking = seq(Piece(THINK, True), Text(end=Piece(THINK_END, True)))
        begin = Piece(SECTION, True)
        rest: list[Node] = []
        if reply.tools:
            number, end = Text("(0|[1-9][0-9]{0,2})", end=Piece(ARGUMENT, True)), Piece(CALL_END, True)
            call = any_of(
                [
                    seq(Piece(CALL, True), f"functions.{name}:", number, arguments_of(schema), end)
                    for name, schema in reply.functions()
                ]
            )
            rest = [call, *reply.rest(call, Piece("")), Piece(SECTION_END, True)]
        body = reply.options(
            calls=Seq((begin, *rest)),
            text=Text(without=(SECTION, CALL)),
            text_and_calls=Seq((Text(end=begin, without=(CALL,)), *rest)),
        )
        return Seq((optional(thinking), body))

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Read calls; text around their section is the content. A call that cannot be read stays in the content and
        sets ``error``."""
        thinking, text = split_thinking(without_stop(text, self.stop_tokens))
        before, section, _ = text.partition(SECTION)
        if not section:
            return ParsedMessage(text, [], thinking, f"tool call outside {SECTION}" if CALL in text else None)
        calls: list[ToolCall] = []
        kept = [before]
        error: str | None = None
        taken: set[str] = set()
        free = 0
        at = len(before) + len(section)
        while (at := skip_blanks(text, at)) < len(text) and not text.startswith(SECTION_END, at):
            call, end, problem = _read_call(text, at)
            error = error or problem
            if call is None:
                kept.append(text[at:end])
            else:
                # Results are matched by id, so a call whose id is taken gets the next free number.
                if call.id in taken:
                    call = replace(call, id=f"functions.{call.name}:{free}")
                taken.add(call.id)
                free = max(free, 1 + int(call.id.rpartition(":")[2]))
                calls.append(call)
            at = end
        if not calls:
            return ParsedMessage(text, [], thinking, error or f"no call after {SECTION}")
        kept.append(text[at + len(SECTION_END) :])
        return ParsedMessage("".join(kept), calls, thinking, error)

    def chat_template(self) -> str | None:
        return TEMPLATE


def _head(mark: str, name: str) -> list[Piece]:
    return [Piece(mark, True), Piece(name), Piece(MIDDLE, True)]


def _assistant(message: Message, text: str, renamed: dict[Any, str], count: int) -> tuple[list[Piece], int]:
    """Render an assistant's turn; return it and the number of calls so far. Adds new ids of calls to ``renamed``."""
    pieces = _head(ASSISTANT, "assistant")
    thinking = message.get("reasoning_content")
    if isinstance(thinking, str) and thinking:
        pieces += [Piece(THINK, True), Piece(thinking), Piece(THINK_END, True)]
    if text:
        pieces.append(Piece(text))
    calls = calls_of(message)
    if calls:
        pieces.append(Piece(SECTION, True))
    for raw, (name, arguments) in zip(message.get("tool_calls") or (), calls, strict=True):
        call_id = raw.get("id")
        found = _ID.fullmatch(call_id) if isinstance(call_id, str) else None
        if found is None or found[1] != name or not call_id.startswith("functions."):
            renamed[call_id] = call_id = f"functions.{name}:{count}"
            found = _ID.fullmatch(call_id)
        count = max(count, int(found[2]) + 1 if found else count)
        pieces += [Piece(CALL, True), Piece(call_id), Piece(ARGUMENT, True), Piece(arguments or "{}")]
        pieces.append(Piece(CALL_END, True))
    return (pieces + [Piece(SECTION_END, True)] if calls else pieces), count


def _read_call(text: str, at: int) -> tuple[ToolCall | None, int, str | None]:
    """Read the call at ``at``; return it or None, the index to go on from, and what is wrong."""
    head = _CALL.match(text, at)
    found = _ID.fullmatch(head[1].strip()) if head else None
    if head is None or found is None:
        problem = f"tool call must begin {CALL}functions.NAME:NUMBER{ARGUMENT}"
    else:
        try:
            arguments, end = read_json_at(text, head.end())
            end = skip_blanks(text, end)
            if text.startswith(CALL_END, end):
                call = ToolCall(head[1].strip(), found[1], json.dumps(arguments, ensure_ascii=False))
                wrong = None if isinstance(arguments, dict) else "the arguments of a tool call must be a JSON object"
                return call, end + len(CALL_END), wrong
            problem = f"tool call without {CALL_END}"
        except ValueError as error:
            problem = f"the arguments of tool call {head[1].strip()} are not a JSON object: {error}"
    following = _NEXT.search(text, at + 1)
    if following is None:
        return None, len(text), problem
    return None, following.end() if following[0] == CALL_END else following.start(), problem
