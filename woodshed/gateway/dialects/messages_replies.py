"""Anthropic Messages: replies, whole and streamed."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from typing import Any

from woodshed.gateway.errors import ApiError, ContextTooLong
from woodshed.gateway.messages import Message
from woodshed.gateway.request import Request
from woodshed.gateway.turns import Answer
from woodshed.gateway.watch import Delta

from .base import encode_json, event
from .messages_requests import parse_messages, to_input

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """``POST /v1/messages``. ``parse_error`` beside ``stop_reason`` says why a tool call could not be parsed."""

    path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"

    def __init__(self, model: str) -> None:
        self.model = model

    def parse(self, body: bytes) -> Request:
        return parse_messages(body)

    def reply(self, request: Request, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        head = _message(self.model)
        body = {**head, "content": _blocks(answer.reply), **_end(answer), "usage": _usage(answer)}
        return encode_json(body).encode()

    def streams(self, request: Request) -> list[MessagesStream]:
        return [MessagesStream(self.model)]

    def counted(self, tokens: int) -> bytes:
        return encode_json({"input_tokens": tokens}).encode()

    def error(self, error: ApiError) -> bytes:
        return encode_json(_error(error)).encode()


class MessagesStream:
    """Writes the events of one reply: one content block at a time, in the order of the complete reply."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._index = -1
        self._open: str | None = None
        self._thinking = ""

    def first(self, prompt_tokens: int) -> bytes:
        """The start of the message. The number of cached tokens is known only at the end, so the last event corrects
        these counts."""
        usage = {"input_tokens": prompt_tokens, "output_tokens": 0}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        end = {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message={**_message(self._model), "content": [], **end, "usage": usage})

    def more(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._text("text" if field == "content" else "thinking", text) for field, text in deltas])

    def last(self, answer: Answer, rest: list[Delta]) -> bytes:
        out = [self.more(rest), self._close()]
        for block in _blocks(answer.reply):
            if block["type"] == "tool_use":
                out.append(self._start({**block, "input": {}}))
                delta = {"type": "input_json_delta", "partial_json": encode_json(block["input"])}
                out += [_event("content_block_delta", index=self._index, delta=delta), self._close()]
        out += [_event("message_delta", delta=_end(answer), usage=_usage(answer)), _event("message_stop")]
        return b"".join(out)

    def closing(self, answers: Sequence[Answer]) -> bytes:
        return b""

    def failed(self, error: ApiError) -> bytes:
        return event(_error(error), "error")

    def _text(self, kind: str, text: str) -> bytes:
        opening = b""
        if self._open != kind:
            empty = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
            opening = self._close() + self._start(empty)
        if kind == "thinking":
            self._thinking += text
        delta = {"type": f"{kind}_delta", kind: text}
        return opening + _event("content_block_delta", index=self._index, delta=delta)

    def _start(self, block: dict[str, Any]) -> bytes:
        self._index += 1
        self._open = block["type"]
        return _event("content_block_start", index=self._index, content_block=block)

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": _signature(self._thinking)}
            signed = _event("content_block_delta", index=self._index, delta=delta)
            self._thinking = ""
        self._open = None
        return signed + _event("content_block_stop", index=self._index)


def _message(model: str) -> dict[str, Any]:
    return {"id": "msg_" + os.urandom(12).hex(), "type": "message", "role": "assistant", "model": model}


def _blocks(reply: Message) -> list[dict[str, Any]]:
    blocks = []
    for kind, field in (("thinking", "reasoning_content"), ("text", "content")):
        if text := reply.get(field):
            blocks.append(_text_block(kind, text))
    for call in reply.get("tool_calls", ()):
        function = call["function"]
        input = to_input(function["arguments"])
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": input})
    return blocks


def _text_block(kind: str, text: str) -> dict[str, Any]:
    """A complete block. Anthropic's signatures prove to its server that it wrote the thinking, and agents drop thinking
    without one. Here the recorder compares the text, so a hash of the text serves as the signature."""
    return {"type": kind, kind: text, **({"signature": _signature(text)} if kind == "thinking" else {})}


def _signature(thinking: str) -> str:
    digest = hashlib.blake2b(thinking.encode("utf-8", "replace"), digest_size=48, key=b"woodshed").digest()
    return base64.b64encode(digest).decode()


def _end(answer: Answer) -> dict[str, Any]:
    reason = _STOP_REASONS[answer.finish_reason]
    if reason == "end_turn" and answer.stop_string is not None:
        reason = "stop_sequence"
    end = {"stop_reason": reason, "stop_sequence": answer.stop_string}
    return end if answer.parse_error is None else {**end, "parse_error": answer.parse_error}


def _usage(answer: Answer) -> dict[str, Any]:
    """The usage. As in Anthropic's API, ``input_tokens`` does not include cached tokens."""
    cached = answer.completion.cached_tokens
    return {
        "input_tokens": answer.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": len(answer.completion.tokens),
    }


def _error(error: ApiError) -> dict[str, Any]:
    """The error in Anthropic's format, extended by ``code`` and ``param`` (the request field)."""
    kind = _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    message = str(error)
    if isinstance(error, ContextTooLong):
        # agents search for these words to decide that the conversation must be shortened
        message = f"prompt is too long: {error.tokens} tokens > {error.context} maximum"
    return {"type": "error", "error": {"type": kind, "message": message, "code": error.code, "param": error.param}}


def _event(kind: str, /, **fields: Any) -> bytes:
    return event({"type": kind, **fields}, kind)
