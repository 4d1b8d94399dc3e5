"""The interface of a dialect, which parses requests and writes replies. It does not handle tokens, segments or keys."""

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
    """Writes the events of one streamed choice: ``first``, any number of ``more``, then ``last``. After the ``last`` of
    all choices follows one ``closing``; ``failed`` may end the stream at any time, once for all choices."""

    def first(self, prompt_tokens: int) -> bytes: ...

    def more(self, deltas: list[Delta]) -> bytes: ...

    def last(self, answer: Answer, rest: list[Delta]) -> bytes:
        """The end of the choice; ``rest`` is the text that has not been sent yet."""
        ...

    def closing(self, answers: Sequence[Answer]) -> bytes:
        """The end of the stream, after all choices."""
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that fails after it has begun."""
        ...


class Dialect(Protocol[R]):
    """One API. An instance serves all requests and keeps no state between them."""

    path: str

    def parse(self, body: bytes) -> R:
        """Parse a request body. Raises ApiError that names the field. Unknown fields are ignored."""
        ...

    def reply(self, request: R, answers: Sequence[Answer]) -> bytes:
        """The response body; ``answers`` has one entry per choice, and only one in APIs without choices."""
        ...

    def streams(self, request: R) -> Sequence[ReplyStream]:
        """One stream per choice, at least one."""
        ...

    def error(self, error: ApiError) -> bytes: ...


class CountingDialect(Dialect[R], Protocol[R]):
    """An API that also counts the tokens of a request without sampling."""

    count_path: str

    def counted(self, tokens: int) -> bytes: ...


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """Encode one server-sent event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {encode_json(data)}\n\n".encode()
