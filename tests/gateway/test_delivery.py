"""Replies that were recorded and did not reach their client."""

import asyncio
import json
import socket
import struct
from typing import Any

import httpx
import pytest

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.policy.formats import get_format

from .parts import ADMIN, COMPACT, HERMES, ScriptedEngine, replies
from .site import USER, Site, run
from .sockets import listening


def content(response: httpx.Response) -> str:
    """The reply may be streamed or whole."""
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["message"]["content"])
    chunks = [json.loads(line[6:]) for line in response.text.split("\n\n") if line and line != "data: [DONE]"]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_that_breaks_after_it_was_recorded_is_given_again(stream: bool) -> None:
    """The client reads nothing, so the server is still sending when all is sampled; then the connection breaks."""

    async def main() -> None:
        engine = ScriptedEngine(replies("word " * 1500 + "<|im_end|>", "another<|im_end|>", tokenizer=HERMES))
        engine.context = 100_000
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        body = {"messages": USER, "max_tokens": 50_000}
        async with listening(app, buffer=4096) as (url, server), httpx.AsyncClient(base_url=url) as client:
            admin = GatewayAdmin(url, ADMIN, client=client)
            key = await admin.open("t")
            headers = {"authorization": f"Bearer {key}"}
            with socket.socket() as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.connect(("127.0.0.1", int(url.rpartition(":")[2])))
                data = json.dumps({**body, "stream": True}).encode()
                head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
                reader.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
                while not app.state.gateway.metrics.turns:
                    await asyncio.sleep(0.005)
                assert len(server.server_state.tasks) == 1, "the reply is recorded, and the server is still sending it"
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while server.server_state.tasks:
                await asyncio.sleep(0.005)
            again = await client.post("/v1/chat/completions", json={**body, "stream": stream}, headers=headers)
            assert content(again).split() == ["word"] * 1500 and len(engine.calls) == 1
            assert app.state.gateway.metrics.redelivered == 1
            other = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert content(other) == "another"
            finished = await admin.finish("t")
            assert (finished.requests, len(finished.segments)) == (2, 2)

    asyncio.run(main())


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_leaves_as_its_reply_is_ready(late: bool) -> None:
    """The engine is done and the client has left in one round of the event loop, in either order."""

    async def test(site: Site) -> None:
        site.engine.gate = asyncio.Event()
        gone = asyncio.Event()
        body = json.dumps({"messages": USER}).encode()
        first = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if first:
                return first.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            """As the server does for a client that has left: takes it and says nothing."""

        headers = [(b"authorization", f"Bearer {site.key}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        call = asyncio.create_task(site.app.state.gateway.endpoints["/v1/chat/completions"](scope, receive, send))
        while not site.engine.samplings:
            await asyncio.sleep(0)
        for event in (site.engine.gate, gone) if late else (gone, site.engine.gate):
            event.set()
        await call
        answer = (await site.chat()).json()["choices"][0]["message"]["content"]
        finished = await site.admin.finish("t")
        assert (answer, finished.requests, len(finished.segments)) == ("a", 1, 1), "one reply, which was read"
        assert len(site.engine.calls) == 1

    run(ScriptedEngine(replies("a<end>", "b<end>", tokenizer=COMPACT)), test)


def test_a_resumed_episode_gets_its_replies_again_and_nothing_else_before() -> None:
    """Two conversations, the second of two turns. What was not asked for again is told when the episode ends."""
    other = [{"role": "user", "content": "and this"}]

    async def test(site: Site) -> None:
        first = (await site.chat()).json()["choices"][0]["message"]
        second = (await site.chat(other)).json()["choices"][0]["message"]
        old, site.key = site.key, await site.admin.resume("t") or ""
        assert (await site.chat(key=old)).status_code == 401
        refused = await site.chat([{"role": "user", "content": "something else"}])
        assert (refused.status_code, refused.json()["error"]["code"]) == (410, "resume_diverged")
        assert (await site.chat()).json()["choices"][0]["message"] == first
        going_on = [*USER, first, {"role": "user", "content": "go on"}]
        assert (await site.chat(going_on)).status_code == 200, "this conversation has come as far as before"
        assert (await site.chat(going_on)).status_code == 410, "a live request is sampled once"
        assert len(site.engine.calls) == 3
        finished = await site.admin.finish("t")
        assert finished.repeating and second and finished.requests == 3
        assert await site.admin.resume("t") is None and await site.admin.resume("unknown") is None

    run(ScriptedEngine(replies("one<end>", "two<end>", "three<end>", "four<end>")), test)


def test_the_session_of_a_reply_that_was_not_recorded_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine returned the routes of its tokens and would not return them again."""

    async def test(site: Site) -> None:
        turns = site.app.state.gateway.endpoints["/v1/chat/completions"].turns
        reply = (await site.chat()).json()["choices"][0]["message"]
        longer = [*USER, reply, {"role": "user", "content": "go on"}]
        with monkeypatch.context() as patched:
            patched.setattr(turns, "_record", lambda *_: 1 / 0)
            assert (await site.chat(longer)).status_code == 500
        (session, *_), (again, *_) = site.engine.calls
        assert session == again and site.engine.released == [session]
        assert (await site.chat(longer)).status_code == 200 and site.engine.released == [session]
        later, *_ = site.engine.calls[-1]
        assert later != session, "a release that arrives late would cancel the request"
        await site.admin.finish("t")
        assert site.engine.released == [session, session, later], "all are released at the end"

    run(ScriptedEngine(replies("one<end>", "two<end>", "three<end>")), test)
