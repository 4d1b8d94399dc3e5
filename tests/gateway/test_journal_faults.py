"""Writes that fail: a file that may not grow, a disk that is full. What was answered is there after a restart."""

import asyncio
import logging
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from disks import small_disk
from limits import soft_limit

from woodshed.gateway.journal import Journal, JournalError, read_conversations
from woodshed.gateway.segments_wire import Finished

from .parts import TOOLS, rendering
from .test_journal import USER, Server, result_of

TEXTS = ("read a.py<end>", "test", "submit<end>", "test<end>")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", kib=128) as made:
        yield made.place


def fill(place: Path, *, leave: int = 0) -> None:
    """Take what room there is, but ``leave`` bytes (in whole pages)."""
    file = os.open(place / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        os.ftruncate(file, max(0, os.fstat(file).st_size - leave))
    finally:
        os.close(file)


async def ask(server: Server, key: str, messages: list[Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = {"messages": messages, "tools": TOOLS}
    return await server.http.post("/v1/chat/completions", json=body, headers=headers)


async def conversation(directory: Path, room: int | None) -> Finished:
    """Three turns, a branch, and a turn of another key. Each fails first, ``room`` bytes into its record."""
    tries = [text for text in (*TEXTS, "test<end>") for _ in range(1 if room is None else 2)]
    server = Server(directory, *tries)
    path = directory / "open.journal"

    async def turn(key: str, asked: list[Any]) -> dict[str, Any]:
        if room is not None:
            size = path.stat().st_size
            with soft_limit(resource.RLIMIT_FSIZE, size + room):
                failed = await ask(server, key, asked)
            assert failed.status_code == 500
            assert path.stat().st_size == size
        return await server.chat(key, asked)

    key, other = await server.admin.open("t"), await server.admin.open("u")
    messages: list[Any] = [USER]
    for i in range(4):
        reply = await turn(key, messages if i < 3 else [USER, {"role": "user", "content": "other"}])
        messages += [reply, result_of(reply, f"result {i}")]
    await turn(other, [USER])
    server.end()
    server = Server(directory)
    assert [t["requests"] for t in await server.admin.list()] == [4, 1]
    assert len((await server.admin.finish("u")).segments) == 1
    finished = await server.admin.finish("t")
    server.end()
    return finished


@pytest.mark.parametrize("room", [0, 3, 40, 400])
def test_a_turn_that_could_not_be_written_leaves_nothing(tmp_path: Path, room: int) -> None:
    async def main() -> None:
        expected = await conversation(tmp_path / "a", None)
        got = await conversation(tmp_path / "b", room)
        assert got.usage == expected.usage and got.prefix_breaks == expected.prefix_breaks == 1
        for a, b in zip(expected.segments, got.segments, strict=True):
            for name in ("tokens", "sampled", "logprobs", "versions", "routes"):
                assert np.array_equal(getattr(a, name), getattr(b, name)), name
            assert a.spans == b.spans

    asyncio.run(main())


def test_a_full_disk_loses_nothing_that_was_answered(disk: Path) -> None:
    async def main() -> None:
        server = Server(disk, *["read a.py<end>"] * 4)
        key = await server.admin.open("t")
        reply = await server.chat(key, [USER])
        messages = [USER, reply, result_of(reply, "x" * 2000)]
        fill(disk)
        for _ in range(2):
            failed = await ask(server, key, messages)
            assert failed.status_code == 500, failed.text
        with pytest.raises(JournalError, match="No space left"):
            await server.admin.open("t", task="x" * 9000)
        (disk / "filler").unlink()
        reply = await server.chat(key, messages)
        server.end()
        server = Server(disk, "submit<end>")
        assert [(t["id"], t["requests"]) for t in await server.admin.list()] == [("t", 2)]
        await server.chat(key, [*messages, reply, result_of(reply, "y")])
        assert (await server.admin.finish("t")).prefix_breaks == 0
        server.end()

    asyncio.run(main())


def test_closing_is_written_before_it_is_done(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(tmp_path, "test<end>", "submit<end>")
        key = await server.admin.open("t")
        reply = await server.chat(key, [USER])
        for close in (server.admin.finish, server.admin.delete):
            with (
                soft_limit(resource.RLIMIT_FSIZE, (tmp_path / "open.journal").stat().st_size),
                pytest.raises(JournalError),
            ):
                await close("t")
        await server.chat(key, [USER, reply, result_of(reply, "x")])
        assert (await server.admin.finish("t")).requests == 2
        server.end()
        server = Server(tmp_path)
        assert await server.admin.list() == [] and (await server.admin.finish("t")).requests == 2
        with soft_limit(resource.RLIMIT_FSIZE, (tmp_path / "open.journal").stat().st_size), pytest.raises(JournalError):
            await server.admin.delete("t")
        await server.admin.delete("t")
        server.end()

    asyncio.run(main())


def test_a_file_that_cannot_be_shortened_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The copy fails part of the way, or cannot even be begun: later turns are written where they are looked for."""

    async def main() -> None:
        server = Server(tmp_path, "read a.py<end>", "test<end>", "submit<end>", "test<end>")
        key = await server.admin.open("t")
        reply = await server.chat(key, [USER])
        messages = [USER, reply, result_of(reply, "x")]
        server.journal._limit = 0  # from here on each close shortens the file
        with caplog.at_level(logging.WARNING, "woodshed.gateway.journal"):
            (tmp_path / "open.tmp").mkdir()
            await server.admin.open("a")
            await server.admin.delete("a")
            (tmp_path / "open.tmp").rmdir()
            with soft_limit(resource.RLIMIT_FSIZE, 100):
                server.journal.compact(t.kept() for t in server.trajectories.by_id.values())
        assert [r.args[1].strerror for r in caplog.records] == ["Is a directory", "File too large"]  # type: ignore[index, union-attr]
        assert not (tmp_path / "open.tmp").exists()
        reply = await server.chat(key, messages)
        server.end()
        server = Server(tmp_path, "submit<end>", "test<end>")
        assert [t["requests"] for t in await server.admin.list()] == [2]
        await server.chat(key, [*messages, reply, result_of(reply, "y")])
        server.journal._limit = 0
        await server.admin.open("a")
        await server.admin.delete("a")
        server.end()
        server = Server(tmp_path)
        finished = await server.admin.finish("t")
        assert finished.requests == 3 and len(finished.segments) == 1
        server.end()

    asyncio.run(main())


def test_a_disk_without_room_for_the_copy(disk: Path) -> None:
    async def main() -> None:
        server = Server(disk, *["read a.py<end>"] * 3)
        key = await server.admin.open("t")
        asked = [{"role": "user", "content": "x " * 1500}]
        reply = await server.chat(key, asked)
        await server.admin.open("a")
        size = (disk / "open.journal").stat().st_size
        fill(disk, leave=8192)
        server.journal._limit = 0
        await server.admin.delete("a")  # room for this, and not for the copy
        assert (disk / "open.journal").stat().st_size > size > 8192
        assert not (disk / "open.tmp").exists()
        await server.chat(key, [*asked, reply, result_of(reply, "x")])
        (disk / "filler").unlink()
        server.end()
        server = Server(disk)
        assert [t["requests"] for t in await server.admin.list()] == [2]
        server.end()

    asyncio.run(main())


def test_a_journal_with_a_gap_says_so(tmp_path: Path) -> None:
    async def turns(server: Server) -> list[int]:
        """Two of one segment, one of another; where in the file each begins, and the end."""
        key = await server.admin.open("t")
        at = [(tmp_path / "open.journal").stat().st_size]
        messages: list[Any] = [USER]
        for i in range(3):
            reply = await server.chat(key, messages if i < 2 else [{**USER, "content": "other"}])
            messages += [reply, result_of(reply, "x")]
            at.append((tmp_path / "open.journal").stat().st_size)
        server.end()
        return at

    at = asyncio.run(turns(Server(tmp_path, *TEXTS)))
    data = (tmp_path / "open.journal").read_bytes()
    gaps = {(0, 1): "segment 0, from token [1-9]", (0, 2): "segment 1, from token 0"}
    for (start, end), where in gaps.items():
        (tmp_path / "open.journal").write_bytes(data[: at[start]] + data[at[end] :])
        journal = Journal(tmp_path)
        with pytest.raises(JournalError, match=rf"open\.journal: a turn of 't' \({where}.* does not continue"):
            journal.restore(rendering())
        journal.close()
    (tmp_path / "open.journal").write_bytes(data)
    journal = Journal(tmp_path)
    assert len(journal.restore(rendering())[0].usage) == 3
    journal.close()


async def _three_turns(directory: Path) -> list[int]:
    """Three turns of one segment; where in the file each begins, and the end."""
    server, path = Server(directory, *TEXTS), directory / "open.journal"
    key = await server.admin.open("t")
    at, messages = [path.stat().st_size], [USER]
    for _ in range(3):
        reply = await server.chat(key, messages)
        messages += [reply, result_of(reply, "x")]
        at.append(path.stat().st_size)
    server.end()
    return at


@pytest.mark.parametrize("tail", [b"\0", bytes(8), bytes(4096), b"\3\0\0\0\0\0\0\0abc", b"\xff\xff\xff\xff1234half"])
def test_an_incomplete_end_is_dropped(tmp_path: Path, tail: bytes) -> None:
    """A file that a power cut ended is longer than what was written to it: the rest is zeros."""
    asyncio.run(_three_turns(tmp_path))
    with (tmp_path / "open.journal").open("ab") as file:
        file.write(tail)
    assert len(read_conversations(tmp_path / "open.journal")) == 1
    journal = Journal(tmp_path)
    assert len(journal.restore(rendering())[0].usage) == 3
    journal.close()


@pytest.mark.parametrize("within", [0, 5, 100])
def test_damage_before_intact_records_is_an_error_that_keeps_the_file(tmp_path: Path, within: int) -> None:
    at, path = asyncio.run(_three_turns(tmp_path)), tmp_path / "open.journal"
    data = bytearray(path.read_bytes())
    data[at[1] + within] ^= 0x40
    path.write_bytes(data)
    journal = Journal(tmp_path)
    with pytest.raises(JournalError, match=rf"open\.journal: it is damaged at byte {at[1]}, and intact records follow"):
        journal.restore(rendering())
    journal.close()
    assert path.read_bytes() == data
    with pytest.raises(JournalError, match="intact records follow"):
        read_conversations(path)
    data[at[2] :] = b""
    path.write_bytes(data)
    journal = Journal(tmp_path)
    assert len(journal.restore(rendering())[0].usage) == 1, "a damaged last record is dropped"
    journal.close()
