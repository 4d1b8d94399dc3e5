"""``compact``: the format for policies of at most a few million parameters.

::

    <bos>fix: ridge satin tulip
    <call>test<end><obs>FAIL ridge ...<call>edit ridge.py
    2    return x<end><obs>ok

System messages and tool schemas are not rendered: such a policy learns its tools from demonstrations. A turn has one
call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from woodshed.policy.tokenizer import Piece
from woodshed.record.large_json import loads

from .base import FormatError, Message, ParsedMessage, Tool, ToolCall, calls_of, function_of, text_content
from .grammar import GrammarRefused, Json, Node, Reply, Text, any_of, optional, seq
from .reading import new_call_id
from .verbs import RAW, Verb, verb_grammar, verbs_of

BOS, CALL, OBS, END = "<bos>", "<call>", "<obs>", "<end>"


class CompactFormat:
    """See the module's docstring and ``ChatFormat``."""

    name = "compact"
    special_tokens: tuple[str, ...] = (BOS, CALL, OBS, END)
    begin_token: str | None = BOS
    signature: tuple[str, ...] = special_tokens
    template_mark = CALL
    stop_tokens: tuple[str, ...] = (END,)

    def open(self, tools: Sequence[Tool], system: str | None = None) -> list[Piece]:
        return []

    def message(self, message: Message, tools: Sequence[Tool]) -> list[Piece]:
        role = message.get("role")
        if role == "assistant":
            return [Piece(CALL, True), Piece(self._assistant(message, tools)), Piece(END, True)]
        if role == "tool":
            return [Piece(OBS, True), Piece(text_content(message))]
        if role == "user":
            return [Piece(BOS, True), Piece(text_content(message))]
        if role in ("system", "developer"):
            return []
        raise FormatError(f"message role {role!r} is unknown; known: system, user, assistant, tool")

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[list[Piece]]:
        return [self.message(m, tools) for m in messages]

    def generation(self) -> list[Piece]:
        return [Piece(CALL, True)]

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Parse a completion as one call, whose verb is the first word.

        An unknown verb, or text that does not fit the verb's template, still makes a call, with the rest of the text
        under ``_text``; the harness answers it with an error. A tool's name in place of its verb makes no call.
        """
        text = text.removesuffix(END)
        word = text.split(maxsplit=1)[0] if text[:1].strip() else ""
        if not tools or not word:
            return ParsedMessage(text, error=None if not tools else "no call: the text does not start with a verb")
        verbs = verbs_of(tools)
        verb, rest = verbs.by_verb.get(word), text[len(word) :]
        if verb is None and word in verbs.by_name:
            # A call of that tool would be rendered with its verb, which is not the text that was sampled.
            return ParsedMessage(text, error=f"no call: {word} is written {verbs.by_name[word].usage!r}")
        if verb is None:
            return _call(text, word, {RAW: rest}, f"unknown verb {word!r}")
        arguments = verb.read(rest)
        if arguments is None:
            return _call(text, verb.name, {RAW: rest}, f"{word}: expected {verb.usage!r}")
        return _call(text, verb.name, arguments, None)

    def reply_grammar(self, reply: Reply) -> Node | None:
        """With tools, a turn is always one call and never text, so only the arguments can be constrained."""
        if not reply.tools:
            return None if reply.schema is None else Json(reply.schema)
        if reply.schema is not None and not reply.must_call:
            raise GrammarRefused('text beside tools would be read as a call; set tool_choice to "none" or "required"')
        calls = []
        for name, verb in verbs_of(reply.tools).by_name.items():
            tool = next(tool for tool in reply.tools if function_of(tool)["name"] == name)
            calls.append(seq(verb.word, optional(Text("(?s: .*)"))) if name in reply.free else verb_grammar(verb, tool))
        return any_of(calls)

    def chat_template(self) -> str | None:
        return None

    def _assistant(self, message: Message, tools: Sequence[Tool]) -> str:
        calls = calls_of(message)
        if not calls:
            return text_content(message)
        if len(calls) > 1:
            raise FormatError(f"the compact format has one call per turn, this message has {len(calls)}")
        name, raw = calls[0]
        verb = verbs_of(tools).by_name.get(name)
        try:
            arguments = loads(raw) if raw else {}
        except ValueError:
            arguments = None
        word = name if verb is None else verb.word
        if not isinstance(arguments, dict):
            return f"{word} {raw}"
        if isinstance(arguments.get(RAW), str) and len(arguments) == 1:
            return word + arguments[RAW]
        return (verb or Verb(name, name, None, {}, ())).write(arguments)


def _call(text: str, name: str, arguments: Mapping[str, Any], error: str | None) -> ParsedMessage:
    call = ToolCall(new_call_id(), name, json.dumps(arguments, ensure_ascii=False))
    return ParsedMessage("", [call], None, error)
