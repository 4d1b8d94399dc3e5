import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from woodshed.engine.protocol import Completion
from woodshed.gateway import trajectories
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.journal import Journal, JournalError, Kept
from woodshed.gateway.key_limits import TurnUsage
from woodshed.gateway.recorder import Recorder
from woodshed.gateway.segments_wire import Finished
from woodshed.policy.formats import get_format

from .parts import ADMIN, COMPACT, TOOLS, ScriptedEngine, rendering, replies

USER = {"role": "user", "content": "fix it"}


class Server:
    """One life of a server; ``end`` is a crash: nothing is flushed or written."""

    def __init__(self, directory: Path, *texts: str) -> None:
        self.engine = ScriptedEngine(replies(*texts), routes=True)
        self.journal = Journal(directory)
        app = build_app(self.engine, get_format("compact"), COMPACT, admin_key=ADMIN, journal=self.journal)
        self.trajectories = app.state.gateway.trajectories
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
        self.admin = GatewayAdmin("http://gateway", ADMIN, client=self.http)

    async def chat(self, key: str, messages: list[Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key}"}
        body = {"messages": messages, "tools": TOOLS}
        response = await self.http.post("/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        return dict(response.json()["choices"][0]["message"])

    def end(self) -> None:
        self.journal.close()


def result_of(message: dict[str, Any], text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": text}


async def conversation(directory: Path, crash_after: set[int], torn: bool = False) -> tuple[Finished, list[Any]]:
    """Three turns and a branch, with a crash after the turns in ``crash_after``."""
    texts = ["read a.py<end>", "test", "submit<end>", "test<end>"]
    server = Server(directory, *texts)
    key = await server.admin.open("t", task="x")
    await server.admin.open("closed")
    await server.admin.finish("closed")
    messages: list[Any] = [USER]
    prompts: list[Any] = []
    for i in range(4):
        reply = await server.chat(key, messages if i < 3 else [USER, {"role": "user", "content": "other"}])
        prompts.append(server.engine.calls[-1][1:])
        messages += [reply, result_of(reply, f"result {i}")]
        if i in crash_after:
            server.end()
            if torn:
                with (directory / "open.journal").open("ab") as file:
                    file.write(b"\xff\0\0\0half a rec")
            server = Server(directory, *texts[i + 1 :])
    finished = await server.admin.finish("t")
    server.end()
    return finished, prompts


@pytest.mark.parametrize("crashes", [{0}, {1}, {2}, {3}, {0, 1, 2, 3}])
def test_a_restart_changes_nothing(tmp_path: Path, crashes: set[int]) -> None:
    async def main() -> None:
        expected, prompts = await conversation(tmp_path / "a", set())
        got, again = await conversation(tmp_path / "b", crashes, torn=True)
        assert [p[0] for p in prompts] == [p[0] for p in again]
        assert (got.prefix_breaks, got.about) == (1, expected.about)
        assert got.usage == expected.usage and got.requests == 4
        assert len(got.segments) == len(expected.segments) == 2
        for a, b in zip(expected.segments, got.segments, strict=True):
            for name in ("tokens", "sampled", "logprobs", "versions", "routes"):
                assert np.array_equal(getattr(a, name), getattr(b, name)), name
            assert a.spans == b.spans

    asyncio.run(main())


def test_keys_are_not_written_and_closed_trajectories_are_dropped(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path, "test<end>")
        key = await server.admin.open("t")
        await server.http.post("/v1/feedback", json={"kind": "x"}, headers={"authorization": f"Bearer {key}"})
        await server.chat(key, [USER])
        assert key.encode() not in (tmp_path / "open.journal").read_bytes()
        server.end()
        server = Server(tmp_path)
        (kept,) = await server.admin.list()
        assert kept["id"] == "t" and kept["segments"] == 1
        finished = await server.admin.finish("t")
        assert finished.feedback[0]["kind"] == "x"
        server.end()
        server = Server(tmp_path)
        assert await server.admin.list() == []
        await server.admin.delete("t")
        server.end()
        server = Server(tmp_path)
        assert (tmp_path / "open.journal").stat().st_size == 0
        server.end()

    asyncio.run(main())


def test_a_reply_that_did_not_arrive_is_given_again(tmp_path: Path) -> None:
    """The client sends what it sent before the crash: it gets what was recorded, once, and nothing is sampled."""

    async def main() -> None:
        server = Server(tmp_path, "read a.py<end>", "submit<end>")
        key = await server.admin.open("t")
        first = await server.chat(key, [USER])
        messages = [USER, first, result_of(first, "x")]
        lost = await server.chat(key, messages)
        server.end()
        server = Server(tmp_path, "test<end>")
        assert await server.chat(key, messages) == lost and not server.engine.calls
        assert "woodshed_gateway_redelivered_total 1" in (await server.http.get("/metrics")).text
        other = await server.chat(key, messages)
        assert other != lost and len(server.engine.calls) == 1, "whoever asks a second time wants a second answer"
        finished = await server.admin.finish("t")
        assert finished.requests == 3 and len(finished.segments) == 2 and finished.prefix_breaks == 1
        server.end()

    asyncio.run(main())


def test_a_resumed_episode_goes_on_after_another_crash_of_the_server(tmp_path: Path) -> None:
    """Replies that the new client has requested again count as such, wherever the server was restarted."""

    async def main(crash_after: int | None) -> Finished:
        directory = tmp_path / str(crash_after)
        server = Server(directory, "read a.py<end>", "test<end>")
        await server.admin.open("t")
        key = await server.admin.resume("t")
        messages: list[Any] = [USER]
        for _ in range(2):
            reply = await server.chat(key, messages)
            messages += [reply, result_of(reply, "x")]
        key = await server.admin.resume("t")
        for done, asked in enumerate(([USER], messages[:3], messages, [{**USER, "content": "summarise"}])):
            if done == crash_after:
                server.end()
                server = Server(directory)
            if done == 2:
                server.engine.say = replies("read b.py<end>", "submit<end>")
            await server.chat(key, asked)
        finished = await server.admin.finish("t")
        server.end()
        return finished

    for crash_after in (None, 1, 2):
        finished = asyncio.run(main(crash_after))
        assert not finished.repeating and finished.refusals == {} and finished.requests == 4, crash_after


def test_a_crash_while_an_episode_is_resumed_loses_no_turn(tmp_path: Path) -> None:
    """Wherever the write of the new key ends."""

    async def main() -> None:
        server, path = Server(tmp_path, "read a.py<end>", "test<end>"), tmp_path / "open.journal"
        old, messages = await server.admin.open("t"), [USER]
        for _ in range(2):
            reply = await server.chat(old, messages)
            messages += [reply, result_of(reply, "x")]
        whole = path.stat().st_size
        new = await server.admin.resume("t") or ""
        server.end()
        data = path.read_bytes()
        for end in (len(data), *range(len(data) - 1, whole - 1, -20)):
            path.write_bytes(data[:end])
            server = Server(tmp_path)
            if end == len(data):
                assert await server.chat(new, [USER]) == messages[1]
            assert await server.chat(new if end == len(data) else old, messages[:3]) == messages[3]
            assert not server.engine.calls
            server.end()

    asyncio.run(main())


def test_a_reply_that_was_cut_by_its_limit_is_given_again_as_such(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path, "read a.py and more", "read a.py and more")
        headers = {"authorization": f"Bearer {await server.admin.open('t')}"}
        choices = []
        for _ in range(2):
            for stop in (["zzz"], ["zzz", "a.py"]):
                body = {"messages": [{**USER, "content": str(stop)}], "stop": stop, "max_tokens": 4}
                answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
                choices.append(answer.json()["choices"][0])
            server.end()
            server = Server(tmp_path)
        server.end()
        assert [choice["finish_reason"] for choice in choices[:2]] == ["length", "stop"]
        assert choices[2:] == choices[:2]

    asyncio.run(main())


def test_a_turn_after_a_restart_is_not_taken_for_one_that_was_lost(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path, "read a.py<end>")
        key = await server.admin.open("t")
        reply = await server.chat(key, [USER])
        server.end()
        server = Server(tmp_path, "submit<end>", "test<end>")
        messages = [USER, reply, result_of(reply, "x")]
        await server.chat(key, messages)
        await server.chat(key, messages)
        assert len(server.engine.calls) == 2
        server.end()

    asyncio.run(main())


def test_the_file_is_shortened_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "FINISHED", 2)

    async def main() -> None:
        server = Server(tmp_path, *["test<end>"] * 80)
        server.journal._least = server.journal._limit = 20_000
        kept = await server.admin.open("kept")
        reply = await server.chat(kept, [USER])
        sizes = []
        for i in range(60):
            await server.chat(await server.admin.open(f"t{i}"), [USER])
            await server.admin.finish(f"t{i}")
            sizes.append((tmp_path / "open.journal").stat().st_size)
        assert max(sizes) < 25_000 and sum(b < a for a, b in pairwise(sizes)) > 1
        server.end()
        server = Server(tmp_path, "submit<end>")
        assert [t["id"] for t in await server.admin.list()] == ["kept"]
        assert (await server.admin.finish("t59")).requests == 1
        await server.chat(kept, [USER, reply, result_of(reply, "x")])
        assert (await server.admin.finish("kept")).prefix_breaks == 0
        server.end()

    asyncio.run(main())


def test_what_was_finished_can_be_asked_for_again(tmp_path: Path) -> None:
    """The server dies after it closed a trajectory and before its answer arrives: no turn is lost."""

    async def main() -> None:
        server = Server(tmp_path, "read a.py<end>")
        key = await server.admin.open("t")
        await server.chat(key, [USER])
        first = await server.admin.finish("t")
        for life in range(2):
            again = await server.admin.finish("t")
            assert again.usage == first.usage and again.segments[0].tokens.tolist() == first.segments[0].tokens.tolist()
            headers = {"authorization": f"Bearer {key}"}
            refused = await server.http.post("/v1/chat/completions", json={"messages": [USER]}, headers=headers)
            assert refused.status_code == 401 and await server.admin.list() == []
            server.end()
            server = Server(tmp_path, f"{life}<end>")
        await server.admin.delete("t")
        with pytest.raises(GatewayError, match="no open trajectory 't'"):
            await server.admin.finish("t")
        for i in range(trajectories.FINISHED + 1):  # so many are kept, and no more
            await server.admin.open(f"t{i}")
            await server.admin.finish(f"t{i}")
        with pytest.raises(GatewayError, match="no open trajectory 't0'"):
            await server.admin.finish("t0")
        await server.admin.open("t1")
        assert not (await server.admin.finish("t1")).segments
        server.end()

    asyncio.run(main())


def test_a_trajectory_that_was_finished_last_is_forgotten_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart too, where it was opened before others that were finished before it."""
    monkeypatch.setattr(trajectories, "FINISHED", 2)

    async def main() -> None:
        server = Server(tmp_path, "read a.py<end>")
        key = await server.admin.open("long")
        await server.chat(key, [USER])
        for id in ("early", "late", "next"):
            await server.admin.open(id)
        for id in ("early", "late", "long"):
            await server.admin.finish(id)
        server.end()
        server = Server(tmp_path)
        await server.admin.finish("next")
        assert (await server.admin.finish("long")).requests == 1
        with pytest.raises(GatewayError, match="no open trajectory 'early'"):
            await server.admin.finish("early")
        server.end()

    asyncio.run(main())


def test_all_that_were_open_at_once_can_be_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their server dies before any of the answers arrives; the rollout of a forgotten one would be run again."""
    monkeypatch.setattr(trajectories, "FINISHED", 2)

    async def main() -> None:
        server = Server(tmp_path, *["read a.py<end>"] * 5)
        ids = [f"t{i}" for i in range(5)]
        for id in ids:
            await server.chat(await server.admin.open(id), [USER])
        for id in ids:
            await server.admin.finish(id)
        server.end()
        server = Server(tmp_path)
        assert [(await server.admin.finish(id)).requests for id in ids] == [1] * 5
        for i in range(4):
            await server.admin.open(f"more{i}")
            await server.admin.finish(f"more{i}")
        assert (await server.admin.finish("t4")).requests == 1
        with pytest.raises(GatewayError, match="no open trajectory 't3'"):  # they are not kept forever
            await server.admin.finish("t3")
        server.end()

    asyncio.run(main())


def test_two_servers_do_not_share_a_journal(tmp_path: Path) -> None:
    first = Journal(tmp_path)
    with pytest.raises(JournalError, match="another server"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["first", "second"])
def test_routes_that_only_one_of_two_turns_has(tmp_path: Path, order: tuple[bool, bool], compacted: bool) -> None:
    """A router has no routes of a reply whose engine died after its last token; those of all tokens come with the next
    turn."""
    recorder, journal = Recorder(rendering()), Journal(tmp_path)
    journal.restore(rendering())
    kept = Kept("t", b"digest", {}, recorder)
    journal.opened(kept)
    messages: list[Any] = [USER]
    for routed in order:
        turn = recorder.plan(messages, [])
        before, n = turn.mark(), len(turn.prompt)
        prompt = np.arange(n, dtype=np.int16)[:, None, None] if routed else None
        routes = np.array([[[n]], [[-1]]], np.int16) if routed else None
        reply = {"role": "assistant", "content": "a"}
        recorder.commit(turn, Completion([260, 1], [-1.0, -1.0], [0, 0], "stop", routes, prompt), reply)
        journal.turn("t", 0, turn.segment, before, TurnUsage(0, n, 2, 0, 0))
        messages += [reply, {"role": "user", "content": "a text that is longer than everything before it " * 2}]
    if compacted:
        journal.compact([kept])
    journal.close()
    journal = Journal(tmp_path)
    (restored,) = journal.restore(rendering())
    journal.close()
    (live,), (after,) = recorder.freeze(), restored.recorder.freeze()
    assert live.routes is not None and after.routes is not None
    assert np.array_equal(live.routes, after.routes)
