from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.responses import StreamingResponse

from woodshed.harness.endpoint import HttpEndpoint, parse_reply, pooled_client
from woodshed.harness.errors import ContextFull, EndpointLost
from woodshed.harness.settings import RetrySettings

from .conftest import Script, call, say, serve

FAST = RetrySettings(attempts=2, first_delay=0.0)
USER = {"role": "user", "content": "hé \ud800"}


def test_many_episodes_share_one_client_and_connections_are_reused() -> None:
    script = Script([lambda body: say(body["messages"][-1]["content"])])

    async def go() -> None:
        async with serve(script) as url, pooled_client() as client:

            async def one(index: int) -> None:
                endpoint = HttpEndpoint(url, f"k{index}", "m", client, sampling={"temperature": 0.5})
                messages: list[dict[str, Any]] = []
                for turn in range(5):
                    messages.append({"role": "user", "content": f"{index}-{turn}-é\n"})
                    reply = await endpoint.complete(messages, [], max_tokens=7)
                    assert reply.message == {"role": "assistant", "content": f"{index}-{turn}-é\n"}
                    messages.append(reply.message)

            await asyncio.gather(*(one(i) for i in range(20)))

    asyncio.run(go())
    assert len(script.requests) == 100 and set(script.keys) == {f"Bearer k{i}" for i in range(20)}
    assert all(r["temperature"] == 0.5 and "tools" not in r for r in script.requests)


def test_messages_are_resent_as_they_are_now() -> None:
    script = Script([say("a")])

    async def go() -> None:
        async with serve(script) as url:
            endpoint = HttpEndpoint(url + "/v1/", "k", "m", retry=FAST)
            await endpoint.complete([{"role": "user", "content": "1"}, USER], [], max_tokens=1)
            await endpoint.complete([{"role": "user", "content": "2"}], [], max_tokens=1)
            await endpoint.close()

    asyncio.run(go())
    assert [m["content"] for m in script.requests[0]["messages"]] == ["1", "hé \ud800"]
    assert [m["content"] for m in script.requests[1]["messages"]] == ["2"]


def test_the_transport_agrees_with_httpx_on_framing() -> None:
    async def chunks() -> Any:
        for part in (b'{"choices":[{"message":', b'{"role":"assistant","content":"x"}', b"}]}"):
            yield part
            await asyncio.sleep(0)

    script = Script([lambda _: StreamingResponse(chunks())])

    async def go() -> None:
        async with serve(script) as url, pooled_client() as fast, pooled_client(streaming=True) as plain:
            for client in (fast, plain):
                reply = await HttpEndpoint(url, "k", "m", client).complete([], [], max_tokens=1)
                assert reply.message["content"] == "x" and reply.prompt_tokens == 0

    asyncio.run(go())


async def _raw_server(answers: list[bytes]) -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
            await reader.readexactly(length)
            writer.write(answers.pop(0))
            await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def test_broken_servers() -> None:
    good = json.dumps({"choices": [{"message": {"role": "assistant", "content": "y"}}]}).encode()
    to_end = b"HTTP/1.0 200 OK\r\n\r\n" + good
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + good

    async def ask(answers: list[bytes]) -> str:
        server, url = await _raw_server(answers)
        async with server, pooled_client() as client:
            reply = await HttpEndpoint(url, "k", "m", client, retry=FAST).complete([], [], max_tokens=1)
        return str(reply.message["content"])

    assert asyncio.run(ask([to_end])) == "y"
    assert asyncio.run(ask([b"", to_end])) == "y"
    assert asyncio.run(ask([cut, to_end])) == "y"
    assert asyncio.run(ask([b"SSH-2.0\r\n\r\n", to_end])) == "y"
    with pytest.raises(EndpointLost, match="ReadError"):
        asyncio.run(ask([cut, cut]))


def test_nobody_there_and_no_answer_in_time() -> None:
    async def nobody() -> None:
        async with pooled_client() as client:
            await HttpEndpoint("http://127.0.0.1:1", "k", "m", client, retry=FAST).complete([], [], max_tokens=1)

    with pytest.raises(EndpointLost, match="ConnectError"):
        asyncio.run(nobody())

    async def silent() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, pooled_client(timeout=0.1) as client:
            await HttpEndpoint(url, "k", "m", client, retry=FAST).complete([], [], max_tokens=1)

    with pytest.raises(EndpointLost, match="ReadTimeout"):
        asyncio.run(silent())


def test_overflow_is_told_apart_from_other_refusals() -> None:
    from starlette.responses import JSONResponse

    async def go(body: dict[str, Any], status: int = 400) -> None:
        async with serve(Script([JSONResponse(body, status)])) as url, pooled_client() as client:
            await HttpEndpoint(url, "k", "m", client).complete([], [], max_tokens=1)

    with pytest.raises(ContextFull):  # a conversation may become so long that its text alone is refused
        asyncio.run(go({"error": {"code": "request_too_large"}}, 413))
    coded, worded = {"error": {"code": "context_length_exceeded"}}, {"message": "the maximum context length is 5"}
    for body in (coded, worded):
        with pytest.raises(ContextFull):
            asyncio.run(go(body))
    with pytest.raises(EndpointLost, match="400"):
        asyncio.run(go({"error": {"code": "invalid_request"}}))


def test_streaming_adds_up_to_the_same_message() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"reasoning_content": "hm"},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read_file", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "grep", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"x"}'}}]},
    ]

    async def events() -> Any:
        for delta in deltas:
            yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n"
        yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {}, 'finish_reason': 'tool_calls'}]})}\n\n"
        yield f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 4, 'completion_tokens': 6}})}\n\n"
        yield "data: [DONE]\n\n"

    async def cut() -> Any:
        yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': deltas[1]}]})}\n\n"

    script = Script([lambda _: StreamingResponse(cut()), lambda _: StreamingResponse(events())])
    heard: list[str] = []

    async def go() -> None:
        async with serve(script) as url:
            endpoint = HttpEndpoint(url, "k", "m", retry=FAST, on_text=heard.append)
            reply = await endpoint.complete([USER], [], max_tokens=9)
            await endpoint.close()
        first, second = reply.message["tool_calls"]
        assert first["function"] == {"name": "read_file", "arguments": '{"path":"x"}'} and first["id"] == "a"
        assert second["function"] == {"name": "grep", "arguments": "{}"}
        assert reply.message["content"] == "Hello" and reply.message["reasoning_content"] == "hm"
        assert (reply.prompt_tokens, reply.sampled_tokens, reply.finish_reason) == (4, 6, "tool_calls")

    asyncio.run(go())
    assert heard == ["Hel", "Hel", "lo"] and script.requests[0]["stream"] is True


def test_only_what_servers_take_back_is_kept() -> None:
    step = call(("grep", {}))
    message = {**step["message"], "refusal": None, "annotations": [], "reasoning_content": "r"}
    reply = parse_reply(json.dumps({"choices": [{"message": message, "finish_reason": None}]}).encode())
    assert set(reply.message) == {"role", "content", "tool_calls", "reasoning_content"}
    for broken in (b"[]", b"{}", b'{"choices":[]}', b'{"choices":[{"message":null}]}', b"\xff"):
        with pytest.raises((ValueError, KeyError, TypeError, IndexError, AttributeError)):
            parse_reply(broken)


def test_a_plain_httpx_client_works_too() -> None:
    async def go() -> None:
        async with serve(Script([say("z")])) as url, httpx.AsyncClient() as client:
            assert (await HttpEndpoint(url, "k", "m", client).complete([], [], max_tokens=1)).message["content"] == "z"

    asyncio.run(go())
