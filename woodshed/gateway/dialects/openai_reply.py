"""OpenAI Chat Completions: replies, whole and streamed."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from woodshed.policy.formats.base import ParsedMessage
from woodshed.policy.tokenizer import Tokenizer

from ..messages import Message
from ..turns import Answer, Parse

DONE = b"data: [DONE]\n\n"
_encode = json.JSONEncoder(separators=(",", ":")).encode
_TAIL = 64
"""Longest end of a text that may turn out to be the beginning of a control word."""


def completion_body(answer: Answer, model: str, tokenizer: Tokenizer, *, logprobs: bool) -> bytes:
    """A ``chat.completion`` object. ``message.parse_error`` says why a tool call could not be read."""
    message = {**answer.reply, "refusal": None}
    if answer.parse_error is not None:
        message["parse_error"] = answer.parse_error
    choice: dict[str, Any] = {
        "index": 0,
        "message": message,
        "finish_reason": answer.finish_reason,
        "logprobs": {"content": logprob_items(answer, tokenizer)} if logprobs else None,
    }
    head = _head("chat.completion", new_id(), model, answer)
    return _encode({**head, "choices": [choice], "usage": usage(answer)}).encode()


def usage(answer: Answer) -> dict[str, Any]:
    sampled = len(answer.completion.tokens)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
        "prompt_tokens_details": {"cached_tokens": answer.completion.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
    }


def logprob_items(answer: Answer, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """One entry per sampled token, the stop token included; natural logarithms."""
    items = []
    for token, logprob in zip(answer.completion.tokens, answer.completion.logprobs):
        raw = tokenizer.token_bytes(token)
        text = raw.decode("utf-8", "replace")
        items.append({"token": text, "logprob": logprob, "bytes": list(raw), "top_logprobs": []})
    return items


def new_id() -> str:
    return "chatcmpl-" + os.urandom(12).hex()


class Stream:
    """Turns the growing text of a completion into chunks, and sends nothing that it might have to take back.

    Text is held back while it could be the beginning of a tool call. What was sent is what the client will send back:
    ``settle`` makes the recorded reply agree with it.
    """

    def __init__(self, model: str, parse: Parse, *, include_usage: bool) -> None:
        self._id = new_id()
        self._model = model
        self._parse = parse
        self._include_usage = include_usage
        self._sent = {"content": "", "reasoning_content": ""}
        self._created = int(time.time())

    def first(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def more(self, text: str) -> bytes:
        """Chunks for what ``text``, everything sampled so far, has that is safe to send."""
        parsed: ParsedMessage = self._parse(text)
        if parsed.error is not None or parsed.tool_calls:
            return b""
        thinking = parsed.thinking or ""
        if parsed.content:
            return self._send("reasoning_content", thinking) + self._send("content", _safe(parsed.content))
        return self._send("reasoning_content", _safe(thinking))

    def settle(self, reply: Message) -> None:
        """Where what was sent is not the beginning of what the reply says, it is what the reply says."""
        for field, sent in self._sent.items():
            if sent and not (reply.get(field) or "").startswith(sent):
                reply[field] = sent

    def last(self, answer: Answer, tokenizer: Tokenizer, *, logprobs: bool) -> bytes:
        """The rest of the text, the calls, the finish reason, the usage where asked for, and the end mark."""
        reply = answer.reply
        out = [self._send(f, reply.get(f) or "") for f in ("reasoning_content", "content")]
        for i, call in enumerate(reply.get("tool_calls", ())):
            function = call["function"]
            opening = {"name": function["name"], "arguments": ""}
            out.append(self._chunk({"tool_calls": [{**call, "index": i, "function": opening}]}))
            delta = {"index": i, "function": {"arguments": function["arguments"]}}
            out.append(self._chunk({"tool_calls": [delta]}))
        if logprobs:
            out.append(self._chunk({}, logprobs={"content": logprob_items(answer, tokenizer)}))
        delta_end = {"parse_error": answer.parse_error} if answer.parse_error is not None else {}
        out.append(self._chunk(delta_end, finish=answer.finish_reason))
        if self._include_usage:
            head = _head("chat.completion.chunk", self._id, self._model, answer, self._created)
            out.append(_event({**head, "choices": [], "usage": usage(answer)}))
        return b"".join([*out, DONE])

    def _send(self, field: str, text: str) -> bytes:
        sent = self._sent[field]
        if len(text) <= len(sent) or not text.startswith(sent):
            return b""
        self._sent[field] = text
        return self._chunk({field: text[len(sent) :]})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        head = _head("chat.completion.chunk", self._id, self._model, None, self._created)
        if self._include_usage:
            head["usage"] = None
        return _event({**head, "choices": [choice]})


def _safe(text: str) -> str:
    """Without an end that may still change: blanks, half a character, or the beginning of a control word."""
    text = text.rstrip("\ufffd")
    at = text.rfind("<", max(0, len(text) - _TAIL))
    return (text if at < 0 else text[:at]).rstrip()


def _head(kind: str, id: str, model: str, answer: Answer | None, created: int | None = None) -> dict[str, Any]:
    head: dict[str, Any] = {"id": id, "object": kind, "created": created or int(time.time()), "model": model}
    if answer is not None and answer.completion.versions:
        # The policy version that sampled the last token.
        head["system_fingerprint"] = f"v{answer.completion.versions[-1]}"
    return head


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + _encode(data).encode() + b"\n\n"
