"""Follows a reply while it is sampled: finds stop strings, and decides which text is safe to stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

from woodshed.policy.formats.base import ParsedMessage
from woodshed.policy.tokenizer import Tokenizer

from .messages import Message


class Watch:
    """Collects tokens from the engine's thread and processes them in the event loop, many per wake-up.

    ``cut`` is the number of tokens up to the end of the first stop string, or None, and ``found`` that string. The
    engine may sample a few more tokens before it stops; they are not part of the completion.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...],
        stop_ids: tuple[int, ...],
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.tokens: list[tuple[int, float, int]] = []
        self.cut: int | None = None
        self.found: str | None = None
        self._strings = stop
        self._stop = [s.encode("utf-8", "replace") for s in stop]
        self._keep = max((len(s) for s in self._stop), default=1) - 1
        self._stop_ids = stop_ids
        self._on_text = on_text
        self._tokenizer = tokenizer
        self._bytes = bytearray()
        self._seen = 0
        self._woken = False
        self._loop = asyncio.get_running_loop()

    def on_token(self, token: int, logprob: float, version: int) -> None:
        """Called in the engine's thread."""
        self.tokens.append((token, logprob, version))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self.look)
            except RuntimeError:  # the event loop is closed
                pass

    def look(self) -> None:
        """Process new tokens. Called in the event loop, and once more when the completion has ended."""
        self._woken = False
        while self._seen < len(self.tokens) and self.cut is None:
            token = self.tokens[self._seen][0]
            self._seen += 1
            if token in self._stop_ids:
                continue
            before = len(self._bytes)
            self._bytes += self._tokenizer.token_bytes(token)
            start = max(0, before - self._keep)
            found = [(at, i) for i, s in enumerate(self._stop) if (at := self._bytes.find(s, start)) >= 0]
            if found:
                at, i = min(found)
                self.cut, self.found = self._seen, self._strings[i]
                del self._bytes[at:]
        if self._on_text is not None:
            self._on_text(self._bytes[: len(self._bytes) - self._held()].decode("utf-8", "replace"))

    def _held(self) -> int:
        """Length in bytes of the longest suffix of the text that is a proper prefix of a stop string."""
        if self.cut is not None:
            return 0
        end = range(min(self._keep, len(self._bytes)), 0, -1)
        return next((n for n in end if any(s.startswith(self._bytes[-n:]) for s in self._stop)), 0)

    def text(self) -> str:
        """The text so far, up to the stop string and without stop tokens."""
        return self._bytes.decode("utf-8", "replace")


Parse = Callable[[str], ParsedMessage]
Field = Literal["reasoning_content", "content"]
Delta = tuple[Field, str]
"""New text of a field of the assistant's message; thinking comes before content."""

_TAIL = 64
"""Maximum number of characters held back because they may be the beginning of a control word."""


class Unsent:
    """Turns the growing text of a completion into deltas that never have to be taken back.

    Text is held back while it could be the beginning of a tool call. The client will send back the text that it
    received, so ``settle`` makes the recorded reply agree with it.
    """

    def __init__(self, parse: Parse) -> None:
        self._parse = parse
        self._sent: dict[Field, str] = {"reasoning_content": "", "content": ""}

    def more(self, text: str) -> list[Delta]:
        """Return the deltas of ``text`` (the whole text so far) that are safe to send and not sent yet."""
        parsed = self._parse(text)
        if parsed.error is not None or parsed.tool_calls:
            return []
        thinking = parsed.thinking or ""
        if parsed.content:
            return [*self._take("reasoning_content", thinking), *self._take("content", _safe(parsed.content))]
        return self._take("reasoning_content", _safe(thinking))

    def settle(self, reply: Message) -> None:
        """Set a field of the reply to the text that was sent, if that text is not a prefix of the field."""
        for field, sent in self._sent.items():
            if sent and not (reply.get(field) or "").startswith(sent):
                reply[field] = sent

    def rest(self, reply: Message) -> list[Delta]:
        """Return the deltas of a settled reply that are not sent yet."""
        return [
            *self._take("reasoning_content", reply.get("reasoning_content") or ""),
            *self._take("content", reply.get("content") or ""),
        ]

    def _take(self, field: Field, text: str) -> list[Delta]:
        sent = self._sent[field]
        if len(text) <= len(sent) or not text.startswith(sent):
            return []
        self._sent[field] = text
        return [(field, text[len(sent) :])]


def _safe(text: str) -> str:
    """Remove from the end of ``text`` what may still change: whitespace, part of a character, or the beginning of a
    control word."""
    text = text.rstrip("\ufffd")
    at = text.rfind("<", max(0, len(text) - _TAIL))
    return (text if at < 0 else text[:at]).rstrip()
