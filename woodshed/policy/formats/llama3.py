"""``llama3``: header tokens and JSON calls, as Llama 3.1, 3.2 and 3.3 instruct models write them.

A message that is one call is the JSON object alone, ``{"name": ..., "parameters": {...}}``. The published template
cannot write text with a call, or several calls. Here ``<|python_tag|>``, which those models write before a call in a
tool environment, stands between text and calls, and ``"; "`` between calls. As in the template, blanks around a text
are dropped and a result is a JSON string. The system turn lists the tools (the template's
``tools_in_user_message=False``), because only then does a longer conversation start with the shorter one's text.

``TEMPLATE`` is the same format as a Jinja chat template, for programs that open a saved policy (transformers, vLLM).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.policy.tokenizer import Piece

from .base import FormatError, Message, ParsedMessage, Tool, ToolCall, calls_of, schema_of, text_content
from .grammar import GrammarRefused, Json, Node, Reply, Seq, Text, any_of, arguments_of, seq
from .reading import call_of_json, read_json_at, without_stop

TEMPLATE = r"""
{%- set ns = namespace(start=0, system='') %}
{%- if messages and messages[0].role == 'system' %}
    {%- set ns.start = 1 %}
    {%- set ns.system = messages[0].content | trim %}
{%- endif %}
{{- '<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}
    {{- 'Environment: ipython\n' }}
{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n' }}
{%- if tools %}
    {{- 'You have access to the following functions. To call a function, please respond with JSON for a function' }}
    {{- ' call.Respond in the format {"name": function name, "parameters": dictionary of argument name and its' }}
    {{- ' value}.Do not use variables.\n\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\n\n' }}
    {%- endfor %}
{%- endif %}
{{- ns.system + '<|eot_id|>' }}
{%- for message in messages[ns.start:] %}
    {%- set role = {'user': 'user', 'assistant': 'assistant', 'tool': 'ipython'}.get(message.role, 'system') %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
    {%- if message.role == 'tool' %}
        {{- message.content | tojson }}
    {%- else %}
        {%- set content = (message.content or '') | trim %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '; ' if not loop.first else '<|python_tag|>' if content else '' }}
            {%- set function = call.function or call %}
            {{- '{"name": ' }}
            {{- function.name | tojson }}
            {{- ', "parameters": ' }}
            {%- if function.arguments is string %}
                {{- function.arguments or '{}' }}
            {%- else %}
                {{- function.arguments | tojson }}
            {%- endif %}
            {{- '}' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""


BEGIN, END_OF_TEXT = "<|begin_of_text|>", "<|end_of_text|>"
HEADER, HEADER_END = "<|start_header_id|>", "<|end_header_id|>"
END, END_OF_MESSAGE, TAG = "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"

_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
_TOOLS = (
    "You have access to the following functions. To call a function, please respond with JSON for a function call."
    'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
)
_ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant", "tool": "ipython"}
_LINE = re.compile(r"^[ \t]*\{", re.MULTILINE)
_BETWEEN = re.compile(r"[ \t\r\n;]*")
_FIRST_KEYS = ('{"name":', '{"type":"function"')
_LIKE_A_CALL = r'(?s:(.*\n)?[ \t]*\{\s*"(name"\s*:|type"\s*:\s*"function").*)'
"""Regular expression (Rust's syntax) of texts in which ``_first_call`` may find a call."""
_WRITE = 'expected {"name": NAME, "parameters": {...}}'


class Llama3Format:
    """See the module's docstring and ``ChatFormat``."""

    name = "llama3"
    special_tokens: tuple[str, ...] = (BEGIN, END_OF_TEXT, HEADER, HEADER_END, END, END_OF_MESSAGE, TAG)
    stop_tokens: tuple[str, ...] = (END, END_OF_MESSAGE, END_OF_TEXT)
    begin_token: str | None = BEGIN
    signature: tuple[str, ...] = (BEGIN, HEADER, HEADER_END, END, TAG)
    template_mark = HEADER

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """Render the system turn, which every conversation has. Its date is the template's default, so that runs are
        reproducible."""
        shown = "".join(json.dumps(schema_of(tool), ensure_ascii=False, indent=4) + "\n\n" for tool in tools)
        head = "Environment: ipython\n" + _DATES + _TOOLS + shown if tools else _DATES
        return [Piece(BEGIN, True), *_header("system"), Piece(head + (system or "").strip()), Piece(END, True)]

    def message(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        role = message.get("role")
        if role not in _ROLES:
            raise FormatError(f"message role {role!r} is unknown; known: system, user, assistant, tool")
        text = text_content(message)
        if role == "assistant":
            body = _assistant(text.strip(), calls_of(message))
        elif role == "tool":
            body = [Piece(json.dumps(text, ensure_ascii=False))]
        else:
            body = [Piece(text.strip())]
        return [*_header(_ROLES[role]), *body, Piece(END, True)]

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[Piece]]:
        return [self.message(m, tools) for m in messages]

    def generation(self) -> list[Piece]:
        return _header("assistant")

    def reply_grammar(self, reply: Reply) -> Node | None:
        if reply.schema is not None and reply.tools and not reply.must_call and _may_be_call(reply.schema):
            raise GrammarRefused(
                'an object that may have "name" and "parameters" or "arguments" would be read as a call; '
                "rename a property, or forbid other properties (additionalProperties: false)"
            )
        calls: list[Node] = []
        if reply.tools:
            # Where an answer in JSON is possible, a call is one JSON value too: a lexer that has begun a longer literal
            # does not go back to the "{" of the answer. Where free text is possible, the literal ends the text.
            whole = reply.schema is not None and not reply.must_call
            call = any_of([_call(name, schema, whole=whole) for name, schema in reply.functions()])
            calls = [call, *reply.rest(call, Piece("; "))]
        before = Text(end=Piece(TAG, True), unlike=(_LIKE_A_CALL,))
        return reply.options(
            calls=Seq(tuple(calls)),
            text=Text(without=(TAG,), unlike=(_LIKE_A_CALL,)),
            text_and_calls=any_of([Seq(tuple(calls)), Seq((before, *calls))]),
        )

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Read calls, which follow ``<|python_tag|>`` or begin a line; without ``tools`` there are none.

        A call that cannot be read stays in the content and sets ``error``.
        """
        text = without_stop(text, self.stop_tokens)
        if not tools:
            return ParsedMessage(text)
        line, tag = _first_call(text), text.find(TAG)
        if line < 0 and tag < 0:
            return ParsedMessage(text)
        # A tag after the beginning of a call is text in its arguments.
        tagged = line < 0 or 0 <= tag < line
        before = text[: tag if tagged else line]
        start = tag + len(TAG) if tagged else line
        calls, end, error = _read_calls(text, start, alone=tagged or not before.strip())
        if not calls:
            return ParsedMessage(text, error=error)
        rest = text[end:] if text[end:].strip() else ""
        return ParsedMessage(before.rstrip() + rest, calls, None, error)

    def chat_template(self) -> str | None:
        return TEMPLATE


def _call(name: str, schema: Mapping[str, Any] | None, *, whole: bool) -> Node:
    """Return the grammar of a call; with ``whole`` as one JSON value, with references within the schema adjusted."""
    if not whole:
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": '
        return seq(head, arguments_of(schema), "}")
    properties = {"name": {"const": name}, "parameters": {"type": "object"} if schema is None else _moved(schema)}
    required = ["name", "parameters"]
    return Json({"type": "object", "properties": properties, "required": required, "additionalProperties": False})


def _moved(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {key: _moved(value) for key, value in schema.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = "#/properties/parameters" + reference[1:]
    return moved


def _may_be_call(schema: Mapping[str, Any]) -> bool:
    """Return whether an object that follows the schema may have the keys of a call."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    if schema.get("type") != "object" or schema.get("additionalProperties") is not False:
        return True
    return "name" in known and bool({"parameters", "arguments"} & known.keys())


def _header(role: str) -> list[Piece]:
    return [Piece(HEADER, True), Piece(role), Piece(HEADER_END, True), Piece("\n\n")]


def _assistant(text: str, calls: Sequence[tuple[str, str]]) -> list[Piece]:
    written = "; ".join(
        f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters": {arguments or "{}"}}}'
        for name, arguments in calls
    )
    if not text or not calls:
        return [Piece(text or written)]
    return [Piece(text), Piece(TAG, True), Piece(written)]


def _first_call(text: str) -> int:
    """Return the index where the first line begins like a call (or with a prefix of such a beginning), -1 if none
    does."""
    for line in _LINE.finditer(text):
        start = line.end() - 1
        head = "".join(text[start : start + 40].split())
        if any(head.startswith(keys) or keys.startswith(head) for keys in _FIRST_KEYS):
            return start
    return -1


def _read_calls(text: str, at: int, *, alone: bool) -> tuple[list[ToolCall], int, str | None]:
    """Read calls from ``at`` on; return them, the index where they end, and what is wrong with what follows.

    An object without parameters is an error only if it stands ``alone``: after other text it may be any JSON.
    """
    calls: list[ToolCall] = []
    error: str | None = None
    while True:
        between = _BETWEEN.match(text, at)
        begin = between.end() if between else at
        if not text.startswith("{", begin):
            missing = None if calls else f"no call after {TAG}: {_WRITE}"
            return calls, len(text) if begin == len(text) else at, error or missing
        try:
            data, end = read_json_at(text, begin)
        except ValueError as problem:
            return calls, at, f"tool call is not a JSON object ({problem}): {_WRITE}"
        call, problem_of = call_of_json(data, "parameters", "arguments")
        if call is None or not ({"parameters", "arguments"} & data.keys()):
            return calls, at, error or (_WRITE if alone else None)
        error = error or problem_of
        calls.append(call)
        at = end
