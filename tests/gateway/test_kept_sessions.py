"""Live sessions are in a store once they are finished, token by token, and whatever happens in between."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from limits import soft_limit

from woodshed.evaluate.builder.sessions import LABEL, read_sessions
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.journal import Journal
from woodshed.gateway.kept_sessions import KeptSessions
from woodshed.harness.registry import ToolRegistry
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.record.segment import Altered
from woodshed.record.store import TrajectoryStore
from woodshed.record.trajectory import Trajectory

from .parts import ADMIN, COMPACT, ScriptedEngine, replies

TOOLS = ToolRegistry(("read_file", "edit_line", "run_tests"), HarnessSettings()).schemas()
ASKED = {"role": "user", "content": "fix a.py"}
TEXTS = ("read a.py<end>", "edit a.py\n2    return 1<end>", "test<end>")


class Server:
    """One life of a server that keeps sessions under ``folder``; without ``journal`` it forgets what is open."""

    def __init__(self, folder: Path, journal: Path | None = None, *, keeps: bool = True) -> None:
        self.sessions = KeptSessions(folder, "mine") if keeps else None
        self.journal = None if journal is None else Journal(journal)
        app = build_app(
            ScriptedEngine(replies(*TEXTS, *TEXTS, *TEXTS)),
            get_format("compact"),
            COMPACT,
            admin_key=ADMIN,
            journal=self.journal,
            sessions=self.sessions,
        )
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway")
        self.admin = GatewayAdmin("http://gateway", ADMIN, client=self.http)

    async def chat(self, key: str, messages: list[Any]) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {key}"}
        answer = await self.http.post(
            "/v1/chat/completions", json={"messages": messages, "tools": TOOLS}, headers=headers
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0]["message"])

    async def work(self, id: str = "s", source: str = "live") -> None:
        """Two turns, feedback, and a turn of a conversation that begins like the first."""
        key = await self.admin.open(id, source=source, labels={LABEL: "https://git.example.invalid/a"})
        reply = await self.chat(key, [ASKED])
        result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "\n1def f():\n2    return 0"}
        await self.chat(key, [ASKED, reply, result])
        await self.chat(key, [ASKED, {"role": "user", "content": "and the tests?"}])
        await self.http.post("/v1/feedback", json={"kept": True}, headers={"authorization": f"Bearer {key}"})

    def end(self) -> None:
        if self.journal is not None:
            self.journal.close()
        if self.sessions is not None:
            self.sessions.close()


def stored(folder: Path) -> list[Trajectory]:
    store = TrajectoryStore(folder)
    found = list(store)
    store.close()
    return found


def test_a_finished_session_is_kept_whole(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        await server.work()
        assert stored(tmp_path) == []
        answer = await server.admin.finish("s", messages=True)
        await server.admin.finish("s")  # again, for the answer may have been lost
        (kept,) = stored(tmp_path)
        assert (kept.id, kept.source, kept.policy, kept.prefix_breaks) == ("s", "live", "mine", 1)
        assert kept.labels == {LABEL: "https://git.example.invalid/a"} and kept.feedback[0]["kept"] is True
        assert 0 < kept.started <= kept.ended
        for name in ("tokens", "sampled", "logprobs", "versions"):
            for a, b in zip(kept.segments, answer.segments, strict=True):
                assert np.array_equal(getattr(a, name), getattr(b, name)), name
        told = [m.get("content") or m["tool_calls"][0]["function"]["name"] for m in kept.messages]
        assert told[0] == "fix a.py" and told.count("fix a.py") == 1 and "and the tests?" in told
        effort = kept.effort
        assert (effort.turns, effort.tool_calls, effort.invalid_calls) == (3, 3, 0)
        assert effort.sampled_tokens == kept.sampled_tokens
        parts = effort.prompt_tokens + effort.sampled_tokens + effort.tool_output_tokens
        assert parts == sum(map(len, kept.segments))
        server.end()

    asyncio.run(main())


def test_the_benchmark_builder_reads_them(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        await server.work()
        await server.admin.finish("s")
        server.end()

    asyncio.run(main())
    (session,) = read_sessions([tmp_path], [])
    assert session.repository == "https://git.example.invalid/a"
    assert session.asked == ("fix a.py", "and the tests?")
    assert [(written.path, written.line.strip()) for written in session.written] == [("a.py", "return 1")]


def test_only_what_people_did_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        for source in ("train", "eval"):
            await server.work(source, source)
            await server.admin.finish(source)
        await server.admin.open("silent", source="live")
        await server.admin.finish("silent")
        await server.work("deleted")
        await server.admin.delete("deleted")
        assert stored(tmp_path) == []
        server.end()

    asyncio.run(main())


def test_a_server_killed_before_it_kept_a_session_keeps_it_at_its_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path / "kept", tmp_path / "journal", keeps=False)  # killed after the journal knew
        await server.work()
        await server.admin.finish("s")
        server.end()
        for _ in range(2):
            Server(tmp_path / "kept", tmp_path / "journal").end()
            (kept,) = stored(tmp_path / "kept")
            assert kept.id == "s" and kept.effort.turns == 3

    asyncio.run(main())


def test_a_session_that_cannot_be_written_is_kept_at_the_next_try(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path)
        await server.work()
        with soft_limit(resource.RLIMIT_FSIZE, 1), pytest.raises(GatewayError, match=r"could not be stored.*finish it"):
            await server.admin.finish("s")
        assert stored(tmp_path) == []
        await server.admin.finish("s")
        assert [kept.id for kept in stored(tmp_path)] == ["s"]
        server.end()

    asyncio.run(main())


def test_two_sessions_of_one_id_are_both_kept(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(2):
            server = Server(tmp_path)
            await server.work()
            await server.admin.finish("s")
            await server.admin.finish("s")
            server.end()

    asyncio.run(main())
    first, second = sorted(stored(tmp_path), key=lambda kept: kept.started)
    assert (first.id, second.id) == ("s", f"s@{second.started:.3f}")


def test_a_folder_that_holds_something_else_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"no database at all " * 100)
    with pytest.raises(OSError, match="sessions cannot be stored here"):
        KeptSessions(tmp_path, "mine")


def test_marks_of_older_records_are_read() -> None:
    assert str(Altered.from_json([3, 9, 0.5, 0.0, 1.0])) == "with penalties"
    mark = Altered(3, 9, 0.5, biased=True)
    assert Altered.from_json(mark.to_json()) == mark and str(mark) == "at temperature 0.5 and with logit_bias"
