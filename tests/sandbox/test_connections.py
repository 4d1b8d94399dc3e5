"""Both ends of a gVisor box's connections, wired to each other, and against a box that breaks the protocol."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import select
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.sandbox.backends.gvisor.connections import Connections as HostEnd
from woodshed.sandbox.guest.frames import FrameError
from woodshed.sandbox.guest.machine_net import MAX_OPEN, WINDOW
from woodshed.sandbox.guest.machine_net import Connections as GuestEnd
from woodshed.sandbox.protocol import BoxSpec, Egress


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def wired(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[tuple[int, Any]]:
    """The port that a box would see, and the host's end; ``under_way`` of it is the most bytes unacknowledged."""
    loop, tasks, port, poll = asyncio.get_running_loop(), set[asyncio.Task[Any]](), _free_port(), select.poll()

    def accept(at: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert at == port
        tasks.add(loop.create_task(answer(reader, writer)))

    to_guest: list[tuple[dict[str, Any], bytes]] = []
    host = HostEnd(accept, lambda frame, body: to_guest.append((frame, body)))
    guest = GuestEnd([port], poll, host.take)

    async def pump() -> None:
        while True:
            for fd, _ in poll.poll(0):
                guest.ready(fd)
            while to_guest:
                guest.take(*to_guest.pop(0))
            await asyncio.sleep(0)

    pumping = loop.create_task(pump())
    try:
        yield port, host
    finally:
        pumping.cancel()
        guest.take({"net": "shut"}, b"")
        guest.take({"net": "reset"}, b"")
        host.lost()
        await asyncio.gather(pumping, *tasks, return_exceptions=True)


@given(st.lists(st.binary(min_size=1, max_size=90_000), max_size=8), st.integers(1, 100_000), st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_goes_in_comes_out(pieces: list[bytes], read: int, half_closed: bool) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(read):
            writer.write(data)
            await writer.drain()
        writer.write(b"the end")
        writer.close()

    async def main() -> None:
        async with wired(echo) as (port, host):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(reader.read() if half_closed else reader.readexactly(sum(map(len, pieces))))
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if half_closed:
                writer.write_eof()
            assert await back == b"".join(pieces) + (b"the end" if half_closed else b"")
            writer.close()
            while host._open:
                await asyncio.sleep(0)

    asyncio.run(main())


def test_who_does_not_read_holds_up_nobody_and_little(tmp_path: Any) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.read(1) == b"e":
            writer.write(b"echo")
            await writer.drain()
            return
        while True:
            writer.write(bytes(1 << 16))
            sent += 1 << 16
            await writer.drain()

    async def main() -> None:
        async with wired(flood) as (port, _):
            with socket.create_connection(("127.0.0.1", port)) as lazy:
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
                lazy.send(b"f")
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"e")
                assert await reader.readexactly(4) == b"echo"
                writer.close()
                before = -1
                while before != sent:  # until nothing moves
                    before = sent
                    for _ in range(200):
                        await asyncio.sleep(0)
            assert 0 < sent < 16 << 20

    asyncio.run(main())


@pytest.mark.parametrize(
    "frames",
    [
        [({"net": "data"}, b"")],
        [({"net": "open", "stream": 1, "port": "80"}, b"")],
        [({"net": "open", "stream": 1, "port": 80}, b"")] * 2,
        [({"net": "open", "stream": n, "port": 80}, b"") for n in range(2 * MAX_OPEN + 2)],
        [({"net": "open", "stream": 1, "port": 80}, b""), ({"net": "ack", "stream": 1, "bytes": 1}, b"")],
        [({"net": "open", "stream": 1, "port": 80}, b"")] + [({"net": "data", "stream": 1}, bytes(WINDOW // 2))] * 3,
        [({"net": ["x"], "stream": 1}, b"")],
    ],
)  # fmt: skip
def test_a_box_that_does_not_keep_to_the_protocol(frames: list[tuple[dict[str, Any], bytes]]) -> None:
    async def main() -> None:
        kept: list[Any] = []
        host = HostEnd(lambda *streams: kept.append(streams), lambda frame, body: None)
        host.take({"net": "data", "stream": 7}, b"of a parent")
        with pytest.raises(FrameError):
            for frame, body in frames:
                host.take(frame, body)
        host.lost()

    asyncio.run(main())


def test_a_fork_in_the_middle_of_a_transfer(with_gvisor: Callable[..., Any]) -> None:
    """Connections are the parent's: they end in the fork, go on in the box, and the fork can make others."""
    fetch = """
import hashlib, socket, sys
with socket.create_connection(("127.0.0.1", 8080), 60) as s:
    got = hashlib.sha256(); size = 0
    while data := s.recv(65536): got.update(data); size += len(data)
print(size, got.hexdigest())
"""
    total = 8 << 20
    chunk = bytes(range(256)) * 256
    expected = f"{total} {hashlib.sha256(chunk * (total // len(chunk))).hexdigest()}\n".encode()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for _ in range(total // len(chunk)):
                writer.write(chunk)
                await writer.drain()
        writer.close()

    async def body(backend: Any) -> None:
        server = await asyncio.start_server(send, "127.0.0.1", 0)
        route = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        box = await backend.create(BoxSpec(egress=Egress(routes={8080: route})))
        under_way = asyncio.create_task(box.exec_python(fetch, timeout=120))
        await asyncio.sleep(0.3)
        [fork] = await backend.fork(await box.snapshot("full"))
        done, again = await asyncio.gather(under_way, fork.exec_python(fetch, timeout=120))
        assert done.stdout == expected and again.stdout == expected, (done, again)
        server.close()

    with_gvisor(body)
