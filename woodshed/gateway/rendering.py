"""Encodes new messages as token ids, in the policy's chat format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodshed.policy.formats.base import ChatFormat, FormatError
from woodshed.policy.tokenizer import Tokenizer, TooManyTokens

from .errors import ApiError
from .messages import Message

Tools = list[dict[str, Any]]
Part = tuple[str, int, Sequence[int]]
"""(role, index of the message or -1 for a continuation of the message before, token ids)"""


class Rendering:
    """A chat format with its tokenizer. Each message is encoded separately, so no token spans two messages."""

    def __init__(self, format: ChatFormat, tokenizer: Tokenizer) -> None:
        self.format = format
        self.tokenizer = tokenizer
        tokenizer.special_id(format.stop_tokens[0])
        self.stop_ids = tuple(tokenizer.special_ids[t] for t in format.stop_tokens if t in tokenizer.special_ids)
        self.generation = tokenizer.encode_pieces(format.generation())
        self._tools: tuple[Tools, ...] = ()
        self._openings: dict[tuple[int, str | None], tuple[Tools, list[int]]] = {}

    def known(self, tools: Tools) -> Tools:
        """Return the same object for equal lists of tools, so that caches and comparisons can use identity; a run has
        one or two lists. Raises ApiError if the chat format cannot use a schema.
        """
        # called from several threads: the tuple is replaced as a whole, so at worst one of two equal lists is forgotten
        before = self._tools
        for i, held in enumerate(before):
            if held is tools or held == tools:
                if i:
                    self._tools = (held, *before[:i], *before[i + 1 :])
                return held
        try:
            self.format.parse("x", tools)
        except FormatError as error:
            raise ApiError(400, "invalid_tools", f"chat format {self.format.name}: {error}", param="tools") from None
        self._tools = (tools, *before)[:16]
        return tools

    def opening(self, tools: Tools, system: str | None, most: int | None = None) -> list[int]:
        """Ids of the tools and the system message, which come before other messages. Cached, because the rollouts of a
        run share them."""
        name = (id(tools), system)
        found = self._openings.get(name)
        if found is None:
            # an entry keeps its list alive, so that no other list gets the same id
            found = (tools, self.tokenizer.encode_pieces(self.format.open(tools, system), most))
            if len(self._openings) >= 64:
                self._openings.clear()
            self._openings[name] = found
        return found[1]

    def parts(
        self, messages: Sequence[Message], first: int, tools: Tools, *, opened: bool, most: int | None = None
    ) -> list[Part]:
        """Encode normalised ``messages``, the first of which has index ``first``, and the beginning of the policy's
        turn. Unless ``opened``, the tools and the system message come first.

        Raises ApiError for a message or a schema that the format cannot render, TooManyTokens if there are more than
        ``most`` ids.
        """
        out: list[Part] = []
        start, used = 0, len(self.generation)
        try:
            if not opened:
                system = None
                if messages and messages[0]["role"] == "system":
                    system, start = messages[0]["content"], 1
                ids = self.opening(tools, system, _left(most, used))
                used += len(ids)
                if ids or start:
                    out.append(("system", 0, ids))
            rest = messages[start:]
            encode = self.tokenizer.encode_pieces
            for i, pieces in enumerate(self.format.messages(rest, tools)):
                ids = encode(pieces, _left(most, used))
                used += len(ids)
                out.append((rest[i]["role"], first + start + i, ids))
        except TooManyTokens as error:
            raise TooManyTokens(used + error.least) from None
        except FormatError as error:
            message = f"chat format {self.format.name}: {error}"
            raise ApiError(400, "invalid_message", message, param="messages") from None
        out.append(("assistant", first + len(messages), self.generation))
        return out

    def text(self, tokens: Sequence[int]) -> str:
        """Text of sampled tokens, without a final stop token."""
        end = len(tokens) - 1 if tokens and tokens[-1] in self.stop_ids else len(tokens)
        return self.tokenizer.decode(tokens[:end])


def _left(most: int | None, used: int) -> int | None:
    return None if most is None else max(0, most - used)
