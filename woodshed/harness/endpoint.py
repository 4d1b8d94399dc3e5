"""Client of an OpenAI-compatible Chat Completions server, with retries and optional streaming.

Each ``HttpEndpoint`` has one API key, which stands for one trajectory; all of them share one pooled client. A run makes
tens of thousands of calls, so repeated parts are serialised once: tools per registry, messages per conversation.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from woodshed.record.trajectory import ReplyUsage

from .errors import ContextFull, EndpointLost
from .settings import RetrySettings
from .wire import WireTransport


async def collect(lines: AsyncIterator[str], on_text: Callable[[str], None]) -> dict[str, Any]:
    """Assemble streamed chunks into one completion, passing every piece of content to ``on_text`` as it arrives.

    A stream that ends without a finish reason yields a completion without choices, which is retried.
    """
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    finish: str | None = None
    async for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            break
        chunk = json.loads(data)
        usage = chunk.get("usage") or usage
        for choice in (chunk.get("choices") or [])[:1]:
            finish = choice.get("finish_reason") or finish
            delta = choice.get("delta") or {}
            for name in ("content", "reasoning_content", "reasoning", "parse_error"):
                if delta.get(name):
                    message[name] = (message.get(name) or "") + delta[name]
            if delta.get("content"):
                on_text(delta["content"])
            for part in delta.get("tool_calls") or []:
                _add(calls, part)
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    choices = [] if finish is None else [{"index": 0, "message": message, "finish_reason": finish}]
    return {"choices": choices, "usage": usage}


def _add(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(int(part.get("index") or 0), empty)
    call["id"] = part.get("id") or call["id"]
    function = part.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""


RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
KEPT = ("role", "content", "tool_calls", "reasoning_content", "reasoning", "thinking")
GARBAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""Exceptions raised by parsing if an answer is not a chat completion."""
OVERFLOW = ("context_length_exceeded", "maximum context length")


@dataclass(frozen=True)
class Reply:
    """One assistant message. Token counts are the server's ``usage``, 0 if it reports none.

    ``message`` is sent back to the server unchanged. ``parse_error`` is set if the server could not parse a call that
    the policy tried (``message.parse_error``).
    """

    message: dict[str, Any]
    finish_reason: str = "stop"
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    thinking_tokens: int = 0
    parse_error: str = ""

    def usage(self, *, context: int, summary: bool, asked_seconds: float) -> ReplyUsage:
        """Return what the episode records about the reply in addition to the message."""
        return ReplyUsage(
            context=context,
            summary=summary,
            prompt_tokens=self.prompt_tokens,
            sampled_tokens=self.sampled_tokens,
            thinking_tokens=self.thinking_tokens,
            finish_reason=self.finish_reason,
            parse_error=self.parse_error,
            asked_seconds=asked_seconds,
        )


class ChatEndpoint(Protocol):
    """A chat server."""

    @property
    def lost_seconds(self) -> float:
        """Total time of failed tries."""
        ...

    @property
    def failing(self) -> str:
        """Reason why the last try failed; '' if it succeeded, or if the first try is still running."""
        ...

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        """Ask for one reply. Without ``call_tools`` it is not parsed for calls (``tool_choice`` none), but ``tools``
        stay in the prompt. Raises ContextFull if the request does not fit the context, EndpointLost after the last
        try."""
        ...


def pooled_client(timeout: float = 600.0, *, streaming: bool = False) -> httpx.AsyncClient:
    """Create a client for any number of concurrent episodes. It ignores proxy settings of the environment.

    With ``streaming``, replies arrive piece by piece; a call then costs several times as much.
    """
    return httpx.AsyncClient(
        mounts={} if streaming else {"http://": WireTransport()},
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0),
        timeout=httpx.Timeout(timeout, connect=10.0),
        trust_env=False,
    )


class HttpEndpoint:
    """A chat server over HTTP. ``base_url`` is its root or its ``/v1``; ``sampling`` adds fields to every request.

    With ``on_text``, replies are streamed and every piece of text is passed to it. Without ``client``, the endpoint
    opens its own, which ``close`` closes. A shared client from ``pooled_client()`` delivers streamed text only at the
    end.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        model: str,
        client: httpx.AsyncClient | None = None,
        *,
        sampling: Mapping[str, Any] | None = None,
        retry: RetrySettings | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        root = base_url.rstrip("/").removesuffix("/v1")
        self.url = httpx.URL(f"{root}/v1/chat/completions")
        self.retry = retry or RetrySettings()
        self.on_text = on_text
        self.lost_seconds, self.failing = 0.0, ""
        self._owned = client is None
        self.client = client or pooled_client(self.retry.request_timeout, streaming=on_text is not None)
        self._headers = [
            (b"host", self.url.netloc),
            (b"authorization", f"Bearer {key}".encode()),
            (b"content-type", b"application/json"),
            (b"accept-encoding", b"identity"),
        ]
        head = {"model": model, **(sampling or {})}
        if on_text is not None:
            head |= {"stream": True, "stream_options": {"include_usage": True}}
        self._head = _json(head)[:-1]
        self._sent: list[tuple[dict[str, Any], bytes]] = []

    async def complete(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        max_tokens: int,
        call_tools: bool = True,
    ) -> Reply:
        body = self._body(messages, tools, max_tokens, call_tools=call_tools)
        delay = self.retry.first_delay
        self.failing = problem = ""
        started = time.monotonic()
        for attempt in range(self.retry.attempts):
            if attempt:
                self.failing = problem
                await asyncio.sleep(delay)
                delay *= 2
            lost = time.monotonic() - started
            try:
                status, answer = await self._post(body)
            except (httpx.RequestError, httpx.InvalidURL, httpx.StreamError, *GARBAGE) as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if status == 200:
                try:
                    reply = parse_reply(answer)
                except GARBAGE as error:
                    problem = f"not a chat completion ({type(error).__name__}: {error}): {answer[:200]!r}"
                    continue
                self.lost_seconds, self.failing = self.lost_seconds + lost, ""
                return reply
            text = answer.decode("utf-8", "replace")
            # The body is too large because the conversation is, whose length the policy determines.
            if status == 413 or (status == 400 and any(word in text for word in OVERFLOW)):
                raise ContextFull(text[:300])
            problem = f"status {status}: {text[:300]}"
            if status not in RETRIED:
                break
        raise EndpointLost(f"{self.url}: {problem}")

    async def close(self) -> None:
        if self._owned:
            await self.client.aclose()

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        headers = [*self._headers, (b"content-length", str(len(body)).encode())]
        timeout = self.client.timeout.as_dict()
        request = httpx.Request("POST", self.url, headers=headers, content=body, extensions={"timeout": timeout})
        response = await self.client.send(request, stream=True)
        try:
            if self.on_text is not None and response.status_code == 200:
                return 200, _json(await collect(response.aiter_lines(), self.on_text))
            return response.status_code, await response.aread()
        finally:
            await response.aclose()

    def _body(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]], max_tokens: int, *, call_tools: bool
    ) -> bytes:
        known = self._sent
        same = 0
        while same < len(known) and same < len(messages) and known[same][0] is messages[same]:
            same += 1
        del known[same:]
        known.extend((message, _json(message)) for message in messages[same:])
        parts = [self._head, b',"max_tokens":%d,"messages":[' % max_tokens, b",".join([b for _, b in known]), b"]"]
        if tools:
            parts += [b',"tools":', _tools_json(tools)]
            if not call_tools:
                parts.append(b',"tool_choice":"none"')
        return b"".join([*parts, b"}"])


def parse_reply(answer: bytes) -> Reply:
    """Parse a chat completion. Raises one of GARBAGE if ``answer`` is something else."""
    data = json.loads(answer)
    choice = data["choices"][0]
    received = choice["message"]
    message = {key: received[key] for key in KEPT if received.get(key) is not None or key in ("role", "content")}
    message["role"] = "assistant"
    calls, content = message.get("tool_calls"), message.get("content")
    if not (calls is None or (isinstance(calls, list) and all(isinstance(call, dict) for call in calls))):
        raise ValueError("tool_calls is not a list of objects")
    if not (content is None or isinstance(content, (str, list))):
        raise ValueError("content is not text")
    usage = data.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    return Reply(
        message,
        choice.get("finish_reason") or "stop",
        int(usage.get("prompt_tokens") or 0),
        int(usage.get("completion_tokens") or 0),
        int(details.get("reasoning_tokens") or 0),
        str(received.get("parse_error") or ""),
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


_tools: dict[int, tuple[Sequence[dict[str, Any]], bytes]] = {}


def _tools_json(tools: Sequence[dict[str, Any]]) -> bytes:
    """Serialise once per list object. The cache entry keeps the list alive, so its id is not reused."""
    found = _tools.get(id(tools))
    if found is None:
        if len(_tools) >= 64:
            _tools.clear()
        found = _tools[id(tools)] = (tools, _json(list(tools)))
    return found[1]
