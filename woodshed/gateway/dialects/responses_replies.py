"""OpenAI Responses: replies, whole and streamed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from woodshed.gateway.errors import ApiError
from woodshed.gateway.turns import Answer
from woodshed.gateway.watch import Delta
from woodshed.policy.tokenizer import Tokenizer

from .base import encode_json, event
from .logprobs import logprob_items, tokens_of_text
from .responses_items import Item, Namespaced, call_item, message_item, reasoning_item, text_part, write_items
from .responses_requests import ResponsesRequest, parse_responses


class Responses:
    """``POST /v1/responses``. ``parse_error`` in a response says why a tool call could not be parsed."""

    path = "/v1/responses"
    count_path = "/v1/responses/input_tokens"

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def parse(self, body: bytes) -> ResponsesRequest:
        return parse_responses(body)

    def reply(self, request: ResponsesRequest, answers: Sequence[Answer]) -> bytes:
        (answer,) = answers
        token = os.urandom(12).hex()
        logprobs = _logprobs(request, answer, self.tokenizer)
        end = _end(answer, token, request.namespaced, logprobs)
        return encode_json({**_head(self.model, token, request), **end}).encode()

    def streams(self, request: ResponsesRequest) -> list[ResponsesStream]:
        return [ResponsesStream(self.model, self.tokenizer, request)]

    def counted(self, tokens: int) -> bytes:
        return encode_json({"object": "response.input_tokens", "input_tokens": tokens}).encode()

    def error(self, error: ApiError) -> bytes:
        body = error.body()
        if error.param == "messages":  # this API calls the conversation `input`
            body["error"]["param"] = "input"
        return encode_json(body).encode()


class ResponsesStream:
    """Writes the events of one response: one item at a time, each from ``added`` to ``done``."""

    def __init__(self, model: str, tokenizer: Tokenizer, request: ResponsesRequest) -> None:
        self._token = os.urandom(12).hex()
        self._tokenizer = tokenizer
        self._request = request
        self._namespaced = request.namespaced
        self._logprobs: list[Item] = []
        self._head = _head(model, self._token, request)
        self._number = -1
        self._index = -1
        self._open: Item | None = None
        self._text = ""

    def first(self, prompt_tokens: int) -> bytes:
        created = self._event("response.created", response=self._head)
        return created + self._event("response.in_progress", response=self._head)

    def more(self, deltas: list[Delta]) -> bytes:
        return b"".join([self._more("message" if field == "content" else "reasoning", text) for field, text in deltas])

    def last(self, answer: Answer, rest: list[Delta]) -> bytes:
        """The end of the response; log-probabilities are in the event that ends the text."""
        out = [self.more(rest)]
        self._logprobs = _logprobs(self._request, answer, self._tokenizer)
        end = _end(answer, self._token, self._namespaced, self._logprobs)
        items = {item["id"]: item for item in end["output"]}
        if f"msg_{self._token}_0" in items:
            out.append(self._begin("message"))
        out.append(self._close(items))
        for i, call in enumerate(answer.reply.get("tool_calls", ())):
            opening = call_item(self._token, i, call, self._namespaced)
            at = {"item_id": opening["id"], "output_index": self._index + 1}
            arguments = call["function"]["arguments"]
            out += [
                self._add(opening),
                self._event("response.function_call_arguments.delta", **at, delta=arguments),
                self._event("response.function_call_arguments.done", **at, name=opening["name"], arguments=arguments),
                self._done(items[opening["id"]]),
            ]
        out.append(self._event(f"response.{end['status']}", response={**self._head, **end}))
        return b"".join(out)

    def closing(self, answers: Sequence[Answer]) -> bytes:
        return b""

    def failed(self, error: ApiError) -> bytes:
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        failure = {"status": "failed", "error": {"code": code, "message": f"{error.code}: {error}"}}
        return self._event("response.failed", response={**self._head, **failure})

    def _more(self, kind: str, text: str) -> bytes:
        opening = self._begin(kind)
        self._text += text
        return opening + self._part_event("delta", delta=text)

    def _begin(self, kind: str) -> bytes:
        """Open an item of this kind, unless one is already open."""
        if self._open is not None and self._open["type"] == kind:
            return b""
        closing = self._close({})
        item = message_item(self._token) if kind == "message" else reasoning_item(self._token)
        added = self._add(item)
        self._open, self._text = item, ""
        return closing + added + self._event("response.content_part.added", **self._at(), part=self._part([]))

    def _close(self, items: dict[str, Item]) -> bytes:
        """Close the open item, if any; ``items`` are the complete items by id, as far as they are known."""
        item = self._open
        if item is None:
            return b""
        written = self._part(self._logprobs)
        whole = items.get(item["id"]) or {**item, "status": "completed", "content": [written]}
        done = self._part_event("done", text=self._text)
        part = self._event("response.content_part.done", **self._at(), part=written)
        self._open = None
        return done + part + self._done(whole)

    def _part(self, logprobs: list[Item]) -> Item:
        assert self._open is not None
        is_text = self._open["type"] == "message"
        return text_part(self._text, logprobs) if is_text else {"type": "reasoning_text", "text": self._text}

    def _part_event(self, what: str, **fields: Any) -> bytes:
        assert self._open is not None
        if self._open["type"] == "message":
            return self._event(f"response.output_text.{what}", **self._at(), logprobs=self._logprobs, **fields)
        return self._event(f"response.reasoning_text.{what}", **self._at(), **fields)

    def _at(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": self._index, "content_index": 0}

    def _add(self, item: Item) -> bytes:
        self._index += 1
        return self._event("response.output_item.added", output_index=self._index, item=item)

    def _done(self, item: Item) -> bytes:
        return self._event("response.output_item.done", output_index=self._index, item=item)

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)


def _head(model: str, token: str, request: ResponsesRequest) -> dict[str, Any]:
    """A response at its start, without output."""
    return {
        "id": f"resp_{token}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "top_logprobs": 0,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": None,
        "metadata": {},
        **request.echo,
    }


def _logprobs(request: ResponsesRequest, answer: Answer, tokenizer: Tokenizer) -> list[Item]:
    """Log-probabilities of the text, if requested."""
    if not request.logprobs:
        return []
    return logprob_items(answer.completion, tokenizer, tokens_of_text(answer.completion, tokenizer, answer.reply))


def _end(answer: Answer, token: str, namespaced: Namespaced, logprobs: list[Item]) -> dict[str, Any]:
    """The fields that a finished response has in addition to its head."""
    complete = answer.finish_reason != "length"
    end = {
        "status": "completed" if complete else "incomplete",
        "incomplete_details": None if complete else {"reason": "max_output_tokens"},
        "output": write_items(answer.reply, token, namespaced, logprobs, complete=complete),
        "usage": _usage(answer),
    }
    return end if answer.parse_error is None else {**end, "parse_error": answer.parse_error}


def _usage(answer: Answer) -> dict[str, Any]:
    sampled = len(answer.completion.tokens)
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.completion.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
        "total_tokens": answer.prompt_tokens + sampled,
    }
