"""What a dialect is. It parses requests and writes replies; it knows nothing of tokens, segments or keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from woodshed.gateway.errors import ApiError
from woodshed.gateway.request import Request
from woodshed.gateway.turns import Answer
from woodshed.gateway.watch import Delta

R = TypeVar("R", bound=Request)

encode_json = json.JSONEncoder(separators=(",", ":")).encode


class ReplyStream(Protocol):
    """The events of one streamed choice: ``first``, any number of ``more``, then ``last``. After the last of all
    choices, ``closing``; or ``failed`` at any time, once for all of them."""

    def first(self, prompt_tokens: int) -> bytes: ...

    def more(self, deltas: list[Delta]) -> bytes: ...

    def last(self, answer: Answer, rest: list[Delta]) -> bytes:
        """``rest`` is the text that was not sent yet."""
        ...

    def closing(self, answers: Sequence[Answer]) -> bytes:
        """What follows the last event of the last choice."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a reply that had begun."""
        ...


class Dialect(Protocol[R]):
    """One API. An object serves all requests and keeps nothing between them."""

    path: str

    def parse(self, body: bytes) -> R:
        """Raises ApiError that names the field. Unknown fields are ignored."""
        ...

    def reply(self, request: R, answers: Sequence[Answer]) -> bytes:
        """One answer for each choice; APIs without choices have one."""
        ...

    def streams(self, request: R) -> Sequence[ReplyStream]:
        """One for each choice, not fewer than one."""
        ...

    def error(self, error: ApiError) -> bytes: ...


class CountingDialect(Dialect[R], Protocol[R]):
    """An API that also counts the tokens of a request without sampling."""

    count_path: str

    def counted(self, tokens: int) -> bytes: ...


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {encode_json(data)}\n\n".encode()
