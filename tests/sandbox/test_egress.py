"""Boxes that may reach something, and what they cannot reach all the same. Real boxes, real servers on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from woodshed.sandbox.host.egress.gate import Gate
from woodshed.sandbox.protocol import BoxSpec, Egress, SandboxError


@pytest.fixture(params=["namespace", "gvisor"])
def with_either(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A backend of each kind: the gate is the same, the way to it is not."""
    return request.getfixturevalue("with_backend" if request.param == "namespace" else "with_gvisor")


class Site:
    """An HTTP/1.1 server that keeps connections open, as real ones do; ``seen`` is every byte that it was sent."""

    def __init__(self) -> None:
        self.seen = b""
        self.port = 0
        self.connections = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.seen += data
                if data.startswith(b"raw"):
                    writer.write(b"echo " + data)
                    continue
                body = b"hello" * 1000 if b"/large" in data else b"hello"
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                if b"Connection: close" in data:
                    break
        writer.close()


@contextlib.asynccontextmanager
async def site() -> AsyncIterator[Site]:
    served = Site()
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()


FETCH = """
import os, sys, urllib.error, urllib.request
os.environ.pop("no_proxy"), os.environ.pop("NO_PROXY")  # the sites of these tests are local
opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": "http://127.0.0.1:3128"}))
for url in sys.stdin.read().split():
    try:
        print(opener.open(url, timeout=300).read().decode()[:40])
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode().strip())
"""

RAW = """
import socket, sys
port, *parts = sys.stdin.buffer.read().split(b"|")
with socket.create_connection(("127.0.0.1", int(port)), 20) as s:
    for part in parts:
        s.sendall(part.replace(b"~", b"\\r\\n"))
        print(s.recv(200).decode("latin-1").split("\\r\\n")[0])
"""


async def fetch(box: Any, *urls: str) -> list[str]:
    result = await box.exec_python(FETCH, stdin=" ".join(urls).encode(), timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


async def requests(box: Any, count: int) -> dict[str, int]:
    """The box's counts once so many requests are over: the last byte is there before its connection has ended."""
    for _ in range(500):
        if box.stats()["egress"]["requests"] >= count:
            break
        await asyncio.sleep(0.01)
    return dict(box.stats()["egress"])


async def raw(box: Any, port: int, *parts: str) -> list[str]:
    result = await box.exec_python(RAW, stdin="|".join([str(port), *parts]).encode(), timeout=600)
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode().splitlines()


def test_allowed_hosts_answer_and_others_are_refused(with_either: Callable[..., Any], tmp_path: Any) -> None:
    async def body(backend: Any) -> None:
        async with site() as here, site() as there:
            egress = Egress(allow=(f"127.0.0.1:{here.port}", "*.example.org"))
            box = await backend.create(BoxSpec(egress=egress))
            good, other, named = await fetch(
                box, f"http://127.0.0.1:{here.port}/a", f"http://127.0.0.1:{there.port}/b", "http://example.com/"
            )
            assert good == "hello"
            assert other == f"403 woodshed: 127.0.0.1:{there.port} is not a host that this box may reach"
            assert named.startswith("403 woodshed: example.com:80 is not a host")
            assert there.connections == 0 and here.seen.startswith(b"GET /a HTTP/1.1\r\n")
            stats = await requests(box, 3)
            assert stats["requests"] == 3 and stats["refused"] == 2 and stats["down"] > 5
            await box.close()
            log = [json.loads(line) for line in (tmp_path / "egress.jsonl").read_text().splitlines()]
            log.sort(key=lambda e: (e["host"], e["status"]))  # each is noted when it is over
            assert [(e["method"], e["host"], e["status"]) for e in log] == [
                ("GET", "127.0.0.1", 200),
                ("GET", "127.0.0.1", 403),
                ("GET", "example.com", 403),
            ]
            assert {e["box"] for e in log} == {box.id} and log[0]["path"] == "/a"

    with_either(body)


def test_programs_find_the_proxy_by_themselves(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here:
            egress = Egress(allow=(f"127.0.0.1:{here.port}",))
            box = await backend.create(BoxSpec(egress=egress, env={"no_proxy": "", "NO_PROXY": ""}))
            code = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{here.port}/x').read())"
            result = await box.exec(["python3", "-c", code])
            assert result.stdout == b"b'hello'\n", result.stderr.decode()

    with_either(body)


def test_tunnels_carry_any_bytes_and_only_to_allowed_places(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here, site() as there:
            box = await backend.create(BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",))))
            told = await raw(box, 3128, f"CONNECT 127.0.0.1:{here.port} HTTP/1.1~~", "raw one", "raw two")
            assert told == ["HTTP/1.1 200 Connection established", "echo raw one", "echo raw two"]
            told = await raw(box, 3128, f"CONNECT 127.0.0.1:{there.port} HTTP/1.1~~")
            assert told == ["HTTP/1.1 403 Forbidden"] and there.connections == 0

    with_either(body)


def test_a_second_request_on_the_same_connection_goes_nowhere(with_either: Callable[..., Any]) -> None:
    """It could name another host, which the same server may serve too."""

    async def body(backend: Any) -> None:
        async with site() as here:
            box = await backend.create(BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",))))
            one = f"POST http://127.0.0.1:{here.port}/a HTTP/1.1~Host: other.example~Content-Length: 4~~body"
            told = await raw(box, 3128, one + "GET /smuggled HTTP/1.1~Host: other.example~~")
            assert told == ["HTTP/1.1 200 OK"]
            assert here.seen.endswith(b"\r\n\r\nbody") and b"smuggled" not in here.seen and b"other" not in here.seen

    with_either(body)


def test_names_of_inner_addresses_are_refused_unless_private_is_set(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here:
            for private, expected in ((False, "403 woodshed: localhost stands for an address"), (True, "hello")):
                egress = Egress(allow=(f"localhost:{here.port}",), private=private)
                box = await backend.create(BoxSpec(egress=egress))
                assert (await fetch(box, f"http://localhost:{here.port}/"))[0].startswith(expected)

    with_either(body)


EXPECTED = {
    "namespace": [
        "ENETUNREACH", "ENETUNREACH", "ENETUNREACH", "ECONNREFUSED", "EPERM", "EAFNOSUPPORT", "EAFNOSUPPORT", "no name",
    ],
    # Netlink is that of the box's own kernel, which has one device: its loopback.
    "gvisor": [
        "EHOSTUNREACH", "EHOSTUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EPERM", "reached", "EPERM", "no name",
    ],
}  # fmt: skip


def test_nothing_but_the_proxy_is_there(with_either: Callable[..., Any]) -> None:
    attempts = """
import socket, errno
def attempt(family, kind, where, proto=0):
    try:
        with socket.socket(family, kind, proto) as s:
            s.settimeout(3)
            s.connect(where)
            s.send(b"x")
        return "reached"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)))
print(attempt(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)))
print(attempt(socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80)))
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", HOST_PORT)))
print(attempt(socket.AF_INET, socket.SOCK_RAW, ("192.0.2.1", 0), 1))
print(attempt(socket.AF_NETLINK, socket.SOCK_RAW, (0, 0)))
print(attempt(socket.AF_PACKET, socket.SOCK_RAW, ("lo", 0)))
try:
    print(socket.getaddrinfo("example.com", 80))
except OSError as e:
    print("no name")
"""

    async def body(backend: Any) -> None:
        async with site() as here:
            box = await backend.create(BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",))))
            result = await box.exec_python(attempts.replace("HOST_PORT", str(here.port)), timeout=600)
            said = result.stdout.decode().split("\n")[:-1]
            assert said == EXPECTED[backend.name], (said, result.stderr.decode())
            assert here.connections == 0

    with_either(body)


def test_boxes_do_not_reach_each_other(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here:
            spec = BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",)))
            one, two = await backend.create(spec), await backend.create(spec)
            listen = "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 9999)); s.listen(); time.sleep(30)"
            serving = asyncio.create_task(one.exec(["python3", "-c", listen], timeout=40))
            ask = "import socket; socket.create_connection(('127.0.0.1', 9999), 1)"
            for _ in range(100):
                if (await one.exec_python(ask)).returncode == 0:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the first box does not even reach itself")
            assert b"ConnectionRefusedError" in (await two.exec_python(ask)).stderr
            await one.close()
            with pytest.raises(SandboxError):
                await serving

    with_either(body)


def test_a_box_that_may_reach_nothing_can_have_a_loopback(with_either: Callable[..., Any]) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 9999)); open('/tmp/up', 'w'); "
    listen += "s.accept()[0].send(b'hi')"
    ask = "import socket; print(socket.create_connection(('127.0.0.1', 9999), 60).recv(9))"

    async def body(backend: Any) -> None:
        one, two = [await backend.create(BoxSpec(egress=Egress())) for _ in range(2)]
        await one.exec(f'python3 -c "{listen}" >/dev/null 2>&1 & until [ -e /tmp/up ]; do sleep 0.05; done')
        assert b"ConnectionRefusedError" in (await two.exec_python(ask)).stderr
        assert (await one.exec_python(ask)).stdout == b"b'hi'\n"
        assert b"PROXY" not in (await one.exec("env")).stdout
        out = await one.exec_python("import socket; socket.create_connection(('192.0.2.1', 80), 3)")
        assert b"unreachable" in out.stderr or b"No route" in out.stderr
        if backend.name == "namespace":  # a gvisor box has a kernel of its own, and its loopback always
            bare = await backend.create(BoxSpec())
            refused = await bare.exec_python("import socket; socket.create_server(('127.0.0.1', 9999))")
            assert b"Address family not supported" in refused.stderr

    with_either(body)


def test_routes_lead_to_one_service(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as gateway:
            box = await backend.create(BoxSpec(egress=Egress(routes={8080: f"127.0.0.1:{gateway.port}"})))
            assert await raw(box, 8080, "raw one", "raw two") == ["echo raw one", "echo raw two"]
            assert (await requests(box, 1))["requests"] == 1
            assert b"HTTP_PROXY" not in (await box.exec("env")).stdout
            refused = await box.exec_python("import socket; socket.create_connection(('127.0.0.1', 3128))")
            assert b"ConnectionRefusedError" in refused.stderr

    with_either(body)


def test_a_route_that_is_open_when_its_box_is_closed_is_told_of(with_either: Callable[..., Any]) -> None:
    keep = """
import socket, time
s = socket.create_connection(("127.0.0.1", 8080), 20)
s.sendall(b"raw one")
open("said", "wb").write(s.recv(200))
time.sleep(90)
"""

    async def body(backend: Any) -> None:
        async with site() as gateway:
            box = await backend.create(BoxSpec(egress=Egress(routes={8080: f"127.0.0.1:{gateway.port}"})))
            keeping = asyncio.create_task(box.exec_python(keep, timeout=120))
            while ("said", "file", 12) not in await box.list():
                assert not keeping.done()
                await asyncio.sleep(0.02)
            assert box.stats()["egress"]["requests"] == 0
            await box.close()
            with pytest.raises(SandboxError):
                await keeping
            assert await requests(box, 1) == {"requests": 1, "refused": 0, "up": 7, "down": 12}

    with_either(body)


def test_forks_and_snapshots_keep_what_a_box_may_reach(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here:
            box = await backend.create(BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",))))
            url = f"http://127.0.0.1:{here.port}/"
            assert await fetch(box, url) == ["hello"]
            snapshot = await box.snapshot()
            forks = await backend.fork(snapshot, 3)
            assert await asyncio.gather(*(fetch(b, url) for b in (box, *forks))) == [["hello"]] * 4
            assert (await requests(box, 2))["requests"] == 2 and (await requests(forks[0], 1))["requests"] == 1

    with_either(body)


def test_a_box_that_floods_is_cut_off_and_harms_no_other(with_either: Callable[..., Any]) -> None:
    flood = """
import socket
held = []
for _ in range(300):
    try:
        held.append(socket.create_connection(("127.0.0.1", 3128), 30))
        held[-1].sendall(b"GET http://")
    except OSError:  # one that is refused may be closed before anything is written
        pass
print(len(held))
import time; time.sleep(600)
"""

    async def body(backend: Any) -> None:
        async with site() as here:
            spec = BoxSpec(egress=Egress(allow=(f"127.0.0.1:{here.port}",), max_bytes=12_000))
            bad, good = await backend.create(spec), await backend.create(spec)
            flooding = asyncio.create_task(bad.exec_python(flood, timeout=600))
            url = f"http://127.0.0.1:{here.port}/"
            for _ in range(6000):
                if bad.stats()["egress"]["refused"] > 100 or flooding.done():
                    break
                await asyncio.sleep(0.05)
            assert bad.stats()["egress"]["refused"] > 100, "connections beyond the limit are refused"
            assert await fetch(good, url) == ["hello"]
            await bad.close()
            with pytest.raises(SandboxError):
                await flooding
            spent = await good.exec_python(FETCH, stdin=f"{url}large {url}large {url}large".encode(), timeout=600)
            assert spent.stdout.decode().splitlines()[:2] == ["hello" * 8] * 2
            assert spent.stdout.count(b"hello") == 16 and (await requests(good, 4))["refused"] == 1
            assert here.connections <= 5

    with_either(body)


def test_a_box_that_opens_too_many_connections_loses_its_network(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        async with site() as here:
            egress = Egress(allow=(f"127.0.0.1:{here.port}",), max_connections=3)
            box = await backend.create(BoxSpec(egress=egress))
            url = f"http://127.0.0.1:{here.port}/"
            assert await fetch(box, url, url, url) == ["hello"] * 3
            for _ in range(3):  # the first of these is accepted and closed, then nothing listens any more
                result = await box.exec_python(FETCH, stdin=url.encode(), timeout=600)
            assert b"Connection refused" in result.stderr and here.connections == 3
            assert (await requests(box, 4))["refused"] == 1, "the one that was closed"
            assert (await box.exec("echo alive")).stdout == b"alive\n"

    with_either(body)


def test_rules_and_routes_that_make_no_sense_are_named(with_either: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        for egress, says in (
            (Egress(allow=("http://index.example",)), "egress rule 'http://index.example'"),
            (Egress(routes={8080: "gateway"}), "egress route 8080 -> 'gateway'"),
            (Egress(routes={3128: "127.0.0.1:80"}), "egress route 3128"),
        ):
            with pytest.raises(SandboxError, match=says.replace("(", r"\(")):
                await backend.create(BoxSpec(egress=egress))
        box = await backend.create(BoxSpec(egress=Egress()))
        nothing = "import socket; socket.create_connection(('127.0.0.1', 3128), 5)"
        assert (await box.exec_python(nothing)).returncode == 1

    with_either(body)


def test_no_room_for_the_sockets_of_a_box_is_a_failure_of_this_machine(with_backend, monkeypatch) -> None:
    listen, (soft, hard) = Gate.listen, resource.getrlimit(resource.RLIMIT_NOFILE)

    async def full(gate: Gate, taking: Any) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # the kernel then drops the descriptors it was sent
        try:
            await listen(gate, taking)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def body(backend: Any) -> None:
        spec = BoxSpec(egress=Egress(routes={8000: "127.0.0.1:9"}))
        await (await backend.create(spec)).close()
        monkeypatch.setattr(Gate, "listen", full)
        with pytest.raises(SandboxError, match="no more files"):
            await backend.create(spec)

    with_backend(body)
