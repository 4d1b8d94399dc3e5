"""``hermes``: ChatML turns with JSON tool calls, as Hermes and Qwen instruct models write them.

Tools stand as JSON lines in the system turn, each call is a ``<tool_call>`` block of ``{"name", "arguments"}``, results
come back as ``<tool_response>`` blocks in a user turn (consecutive ones share it). Thinking stays in the history, so
that a longer conversation starts with the shorter one's text; Qwen3's own template drops it from earlier turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from woodshed.policy.formats.base import (
    FormatError,
    Message,
    ParsedMessage,
    Tool,
    ToolCall,
    calls_of,
    function_of,
    new_call_id,
    read_json_object,
    text_content,
)
from woodshed.policy.formats.hermes_template import TEMPLATE
from woodshed.policy.tokenizer import Piece

START, END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"
THINK, THINK_END = "<think>", "</think>"
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
_BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_CONTROL_IN_PROSE = re.compile(r"(</?tool_call>)")


class HermesFormat:
    """See the module's docstring and ``ChatFormat``."""

    name = "hermes"
    special_tokens: tuple[str, ...] = (
        END_OF_TEXT, START, END, CALL, CALL_END, RESPONSE, RESPONSE_END, THINK, THINK_END,
    )  # fmt: skip
    stop_tokens: tuple[str, ...] = (END, END_OF_TEXT)

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        """The system turn; it is always there, as in Qwen2.5, and has a default text."""
        pieces = [Piece(START, True), Piece("system\n"), Piece(DEFAULT_SYSTEM if system is None else system)]
        if tools:
            pieces.append(Piece(_TOOLS_BEFORE + "".join("\n" + _schema(tool) for tool in tools)))
            # The instruction shows the markers themselves, which a vocabulary that has them has as control tokens.
            pieces += [Piece(t, t in (CALL, CALL_END)) for t in _CONTROL_IN_PROSE.split(_TOOLS_AFTER) if t]
        return [*pieces, Piece(END, True)]

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
                    pieces.append(Piece(END, True))
            elif role == "assistant":
                pieces = [*self.generation(), *_assistant(message), Piece(END, True)]
            elif role in ("user", "system", "developer"):
                word = "user" if role == "user" else "system"
                pieces = [*_turn(word), Piece(text_content(message)), Piece(END, True)]
            else:
                raise FormatError(f"message role {role!r} is unknown; known: system, user, assistant, tool")
            out.append(pieces)
        return out

    def generation(self) -> list[Piece]:
        return _turn("assistant")

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Text before and after the calls is the content. A block that is not a call stays in it, with ``error``."""
        stop = next((t for t in self.stop_tokens if text.endswith(t)), "")
        text = text.removesuffix(stop)
        thinking, text = _split_thinking(text)
        calls: list[ToolCall] = []
        kept: list[str] = []
        error: str | None = None
        end = 0
        for block in _BLOCK.finditer(text):
            call, problem = _read_call(block[1], closed=block[0].endswith(CALL_END))
            error = error or problem
            before = text[end : block.start()]
            if call is None:
                kept.append(before + block[0])
            else:
                calls.append(call)
                kept.append(before[:-1] if before.endswith("\n") else before)
            end = block.end()
        kept.append(text[end:])
        return ParsedMessage("".join(kept), calls, thinking, error)

    def chat_template(self) -> str | None:
        return TEMPLATE


def _turn(role: str) -> list[Piece]:
    return [Piece("\n"), Piece(START, True), Piece(role + "\n")]


def _schema(tool: Tool) -> str:
    """The schema as one JSON line, without what only the ``compact`` format reads."""
    function = {k: v for k, v in function_of(tool).items() if k != "x-compact"}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


def _assistant(message: Message) -> list[Piece]:
    pieces: list[Piece] = []
    thinking = message.get("reasoning_content")
    if isinstance(thinking, str) and thinking:
        pieces += [Piece(THINK, True), Piece(f"\n{thinking}\n"), Piece(THINK_END, True), Piece("\n\n")]
    content = text_content(message)
    if content:
        pieces.append(Piece(content))
    for i, (name, arguments) in enumerate(calls_of(message)):
        if i or content:
            pieces.append(Piece("\n"))
        body = f'\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}\n'
        pieces += [Piece(CALL, True), Piece(body), Piece(CALL_END, True)]
    return pieces


def _split_thinking(text: str) -> tuple[str | None, str]:
    """A leading ``<think>`` block and the rest; an unclosed block is all thinking."""
    stripped = text.lstrip()
    if not stripped.startswith(THINK):
        return None, text
    thinking, _, rest = stripped[len(THINK) :].partition(THINK_END)
    thinking = thinking.removeprefix("\n").removesuffix("\n")
    return thinking, rest.removeprefix("\n\n") if rest.startswith("\n\n") else rest.removeprefix("\n")


def _read_call(block: str, *, closed: bool) -> tuple[ToolCall | None, str | None]:
    if not closed:
        return None, "tool call without </tool_call>"
    try:
        data = read_json_object(block)
    except ValueError as error:
        return None, f"tool call is not a JSON object: {error}"
    if not isinstance(data.get("name"), str):
        return None, 'tool call must be a JSON object with "name" and "arguments"'
    arguments = data.get("arguments", {})
    if isinstance(arguments, str):
        # Some models write the arguments as a string that holds JSON.
        return ToolCall(new_call_id(), data["name"], arguments), None
    problem = None if isinstance(arguments, dict) else "the arguments of a tool call must be a JSON object"
    return ToolCall(new_call_id(), data["name"], json.dumps(arguments, ensure_ascii=False)), problem
