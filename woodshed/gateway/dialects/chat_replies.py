"""OpenAI Chat Completions: replies, whole and streamed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from woodshed.gateway.errors import ApiError
from woodshed.gateway.turns import Answer
from woodshed.gateway.watch import Delta
from woodshed.policy.tokenizer import Tokenizer

from . import chat_requests
from .base import encode_json, event
from .chat_requests import ChatRequest, parse_chat
from .logprobs import logprob_items

DONE = b"data: [DONE]\n\n"


class ChatCompletions:
    """``POST /v1/chat/completions``. ``message.parse_error`` says why a tool call could not be parsed."""

    path = "/v1/chat/completions"

    def __init__(self, model: str, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def parse(self, body: bytes) -> ChatRequest:
        return parse_chat(body)

    def reply(self, request: ChatRequest, answers: Sequence[Answer]) -> bytes:
        choices = [self._choice(request, index, answer) for index, answer in enumerate(answers)]
        head = _head("chat.completion", new_id(), self.model, answers[0])
        return encode_json({**head, "choices": choices, "usage": usage(answers)}).encode()

    def streams(self, request: ChatRequest) -> list[ChatStream]:
        """One stream per choice. All choices are one reply, so they share its id and creation time."""
        id, created = new_id(), int(time.time())
        return [
            ChatStream(self.model, self.tokenizer, request, index=index, id=id, created=created)
            for index in range(request.choices)
        ]

    def _choice(self, request: ChatRequest, index: int, answer: Answer) -> dict[str, Any]:
        message = {**answer.reply, "refusal": None}
        if answer.parse_error is not None:
            message["parse_error"] = answer.parse_error
        if request.legacy:
            message = chat_requests.as_function_call(message)
        return {
            "index": index,
            "message": message,
            "finish_reason": _finish_reason(request, answer),
            "logprobs": {"content": logprob_items(answer.completion, self.tokenizer)} if request.logprobs else None,
        }

    def error(self, error: ApiError) -> bytes:
        return encode_json(error.body()).encode()


class ChatStream:
    """Writes the chunks of one choice."""

    def __init__(
        self, model: str, tokenizer: Tokenizer, request: ChatRequest, *, index: int, id: str, created: int
    ) -> None:
        self._id = id
        self._model = model
        self._tokenizer = tokenizer
        self._request = request
        self._created = created
        self._index = index

    def first(self, prompt_tokens: int) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def more(self, deltas: list[Delta]) -> bytes:
        return b"".join(self._chunk({field: text}) for field, text in deltas)

    def last(self, answer: Answer, rest: list[Delta]) -> bytes:
        """The rest of the text, the calls, log-probabilities if requested, and the finish reason."""
        out = [self.more(rest)]
        calls = answer.reply.get("tool_calls", ())
        if self._request.legacy:
            out += [self._chunk({"function_call": call["function"]}) for call in calls[:1]]
            calls = ()
        for i, call in enumerate(calls):
            function = call["function"]
            opening = {"name": function["name"], "arguments": ""}
            out.append(self._chunk({"tool_calls": [{**call, "index": i, "function": opening}]}))
            delta = {"index": i, "function": {"arguments": function["arguments"]}}
            out.append(self._chunk({"tool_calls": [delta]}))
        if self._request.logprobs:
            out.append(self._chunk({}, logprobs={"content": logprob_items(answer.completion, self._tokenizer)}))
        delta_end = {"parse_error": answer.parse_error} if answer.parse_error is not None else {}
        out.append(self._chunk(delta_end, finish=_finish_reason(self._request, answer)))
        return b"".join(out)

    def closing(self, answers: Sequence[Answer]) -> bytes:
        """The usage if requested, and the end marker."""
        if not self._request.include_usage:
            return DONE
        head = _head("chat.completion.chunk", self._id, self._model, answers[0], self._created)
        return event({**head, "choices": [], "usage": usage(answers)}) + DONE

    def failed(self, error: ApiError) -> bytes:
        return event(error.body()) + DONE

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": self._index, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        head = _head("chat.completion.chunk", self._id, self._model, None, self._created)
        if self._request.include_usage:
            head["usage"] = None
        return event({**head, "choices": [choice]})


def _finish_reason(request: ChatRequest, answer: Answer) -> str:
    calls = request.legacy and answer.finish_reason == "tool_calls"
    return "function_call" if calls else answer.finish_reason


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Usage of all choices: the prompt counts once, and only tokens that were cached for every choice are cached."""
    prompt, sampled = answers[0].prompt_tokens, sum(len(answer.completion.tokens) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": min(answer.completion.cached_tokens for answer in answers)},
        "completion_tokens_details": {"reasoning_tokens": sum(answer.thinking_tokens for answer in answers)},
    }


def new_id() -> str:
    return "chatcmpl-" + os.urandom(12).hex()


def _head(kind: str, id: str, model: str, answer: Answer | None, created: int | None = None) -> dict[str, Any]:
    head: dict[str, Any] = {"id": id, "object": kind, "created": created or int(time.time()), "model": model}
    if answer is not None and answer.completion.versions:
        # the policy version that sampled the last token
        head["system_fingerprint"] = f"v{answer.completion.versions[-1]}"
    return head
