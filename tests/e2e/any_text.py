"""A chat format in which every text is a call, so that a policy with random weights edits, tests and finishes.

What is sampled, recorded and trained is as real as ever; only what a text means does not have to be learned. The text
is the reply's content, which renders as it was sampled. A run gets this file as a module of the user's own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

from woodshed.policy.formats.base import Message, ParsedMessage, Tool, ToolCall, text_content
from woodshed.policy.formats.compact import END, CompactFormat
from woodshed.policy.formats.reading import new_call_id

NOTES = "notes.txt"
"""A file beside the package: writing it repairs nothing, so tests that fail go on failing."""


class AnyText(CompactFormat):
    """Of eight texts one finishes, three write and four run the tests."""

    name = "any_text"

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        text = text.removesuffix(END)
        draw, arguments = zlib.crc32(text.encode("utf-8", "replace")) % 8, dict[str, Any]()
        if 1 <= draw <= 3:
            name, arguments = "write_file", {"path": NOTES, "content": text}
        else:
            name = "run_tests" if draw else "finish"
        return ParsedMessage(text, [ToolCall(new_call_id(), name, json.dumps(arguments))])

    def _assistant(self, message: Message, tools: Sequence[Tool]) -> str:
        return text_content(message)
