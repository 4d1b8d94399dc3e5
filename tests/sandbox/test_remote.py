"""Boxes on two hosts, which are two programs here: what only hosts do."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from woodshed.sandbox.guest.frames import encode
from woodshed.sandbox.layers import LayerStore, digest
from woodshed.sandbox.opening import open_boxes
from woodshed.sandbox.protocol import BoxSpec, Egress, Paused, SandboxError, Unsupported
from woodshed.sandbox.remote.transfer import pack, unpack
from woodshed.sandbox.remote.wire import CLIENT, HostLost
from woodshed.sandbox.settings import SandboxSettings

from .hosts import KEY, BoxHost, placed

HEADERS = {"authorization": f"Bearer {KEY}", CLIENT: "a" * 32}


@pytest.fixture
def with_backend(with_hosts: Callable[..., Any]) -> Callable[..., Any]:
    """In place of conftest's."""
    return with_hosts


def test_errors_come_back_as_what_they_were(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec(files={"a": b"1", "d/x": b"2"}))
        for call, kind, path in (
            (box.read("none"), FileNotFoundError, "none"),
            (box.read("d"), IsADirectoryError, "d"),
            (box.read("/proc/self/environ"), PermissionError, "environ"),
            (box.delete("none"), FileNotFoundError, "none"),
            (box.list("a"), NotADirectoryError, "a"),
        ):
            with pytest.raises(kind) as caught:
                await call
            assert str(caught.value.filename).rstrip("/").endswith(path) and caught.value.errno
        with pytest.raises(OSError, match="larger than max_bytes"):
            await box.get(["**"], max_bytes=1)
        with pytest.raises(OSError, match="max_body"):
            box.host.max_body = 1 << 20
            await box.put({"big": bytes(1 << 20)})
        with pytest.raises(ValueError, match="empty"):
            await box.exec([])
        slow = await box.exec("sleep 9", timeout=0.2)
        assert slow.timed_out and (await box.exec("exit 3; ")).returncode == 3
        await box.pause()
        with pytest.raises(Paused, match="resume"):
            await box.exec("true")
        assert box.stats()["paused"] is True
        await box.resume()
        assert (await box.exec("cat; echo é >&2", stdin=b"\xff\0")).stdout == b"\xff\0"
        assert box.stats()["execs"] == 3 and box.stats()["host"].startswith("http://127.0.0.1:")
        with pytest.raises(Unsupported, match="memory"):
            await box.snapshot("full")
        told = []
        box.when_closed(lambda: told.append(1))
        await box.close()
        await box.close()
        assert told == [1] and box.stats()["execs"] == 3

    with_backend(body)


def test_boxes_spread_and_forks_stay(with_backend: Callable[..., Any], hosts: list[BoxHost]) -> None:
    async def body(backend: Any) -> None:
        boxes = await asyncio.gather(*(backend.create(BoxSpec()) for _ in range(8)))
        assert [host.living() for host in hosts] == [4, 4]
        first = [box for box in boxes if box.stats()["host"] == hosts[0].url]
        snapshot = await first[0].snapshot()
        forks = await backend.fork(snapshot, 3)
        assert {fork.stats()["host"] for fork in forks} == {hosts[0].url}
        new = [await backend.create(BoxSpec()) for _ in range(3)]
        assert {box.stats()["host"] for box in new} == {hosts[1].url}, "it has less to do"
        await backend.drop(snapshot)
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)

    with_backend(body)


def test_a_host_that_makes_no_boxes_is_not_given_all_of_them(hosts: list[BoxHost], tmp_path: Path) -> None:
    """It fails at once, so it is always the one with the fewest boxes."""
    broken = BoxHost(tmp_path / "broken").wait()
    shutil.rmtree(broken.state / "now")
    (broken.state / "now").write_text("no folder")

    async def main() -> list[Any]:
        backend = placed(broken, hosts[1])
        try:
            made = [await asyncio.gather(backend.create(BoxSpec()), return_exceptions=True) for _ in range(6)]
            return [one for (one,) in made]
        finally:
            await backend.close()

    try:
        made = asyncio.run(main())
    finally:
        broken.stop()
    failed = [one for one in made if isinstance(one, BaseException)]
    assert len(failed) == 1 and isinstance(failed[0], SandboxError), made
    assert {box.stats()["host"] for box in made if box not in failed} == {hosts[1].url}


def test_who_stops_waiting_stops_the_command_and_leaves_no_box(
    with_backend: Callable[..., Any], hosts: list[BoxHost]
) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        running = asyncio.create_task(box.exec("touch began; sleep 77"))
        while not await box.list():
            await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        while (await box.usage())["processes"]:
            await asyncio.sleep(0.02)
        for delay in (0.0, 0.002, 0.01, 0.02):
            making = asyncio.create_task(backend.create(BoxSpec()))
            await asyncio.sleep(delay)
            making.cancel()
            for made in await asyncio.gather(making, return_exceptions=True):
                if not isinstance(made, BaseException):
                    await made.close()
        while sum(host.living() for host in hosts) > 1:
            await asyncio.sleep(0.05)

    with_backend(body)


def test_a_layer_is_sent_once_and_its_contents_are_checked(
    with_backend: Callable[..., Any], hosts: list[BoxHost], tmp_path: Path
) -> None:
    def fill(folder: Path) -> None:
        (folder / "opt" / "x").mkdir(parents=True)
        (folder / "opt" / "x" / "run").write_text("#!/bin/sh\necho ran")
        (folder / "opt" / "x" / "run").chmod(0o755)
        (folder / "opt" / "link").symlink_to("/opt/x/run")
        os.link(folder / "opt" / "x" / "run", folder / "opt" / "second")

    store = LayerStore(tmp_path / "layers")
    name = store.add("tools", fill)

    async def body(backend: Any) -> None:
        boxes = [await backend.create(BoxSpec(layers=(store.path(name),))) for _ in range(4)]
        for box in boxes:
            assert (await box.exec("/opt/link && /opt/second")).stdout == b"ran\nran\n"

    with_backend(body)
    for host in hosts:
        kept = host.state / "layers" / name
        assert digest(kept) == digest(store.path(name))
        before = kept.stat().st_ino
        with_backend(body)
        assert kept.stat().st_ino == before
    file = io.BytesIO()
    pack(store.path(name), file)
    wrong = httpx.put(f"{hosts[0].url}/layers/tools-{'0' * 24}", content=file.getvalue(), headers=HEADERS)
    assert wrong.status_code == 400 and "its contents are those of" in wrong.json()["error"]["message"]


def _tar(*members: tuple[str, bytes, str]) -> io.BytesIO:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, to in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, to
            info.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"evil") if info.size else None)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([("../out", tarfile.REGTYPE, "")], "not a path inside"),
        ([("/etc/out", tarfile.REGTYPE, "")], "not a path inside"),
        ([("a", tarfile.SYMTYPE, "/tmp"), ("a/out", tarfile.REGTYPE, "")], "exists"),
        ([("a", tarfile.SYMTYPE, ".."), ("a/b", tarfile.SYMTYPE, "x")], "below a link"),
        ([("a", tarfile.REGTYPE, ""), ("a", tarfile.REGTYPE, "")], "exists"),
        ([("a", tarfile.LNKTYPE, "/etc/passwd")], "neither a file"),
        ([("a", tarfile.FIFOTYPE, "")], "neither a file"),
        ([("a", tarfile.CHRTYPE, "")], "neither a file"),
        ([(name, tarfile.REGTYPE, "") for name in "abc"], "more than 8 bytes"),
    ],
)
def test_no_layer_writes_outside_its_folder(members: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        unpack(_tar(*members), f"x-{'0' * 24}", LayerStore(tmp_path / "s" / "layers"), most=8)
    assert [p for p in tmp_path.rglob("*") if p.name not in ("s", "layers")] == []


def test_hostile_requests_get_nowhere(hosts: list[BoxHost]) -> None:
    url = hosts[0].url
    with httpx.Client(trust_env=False) as http:
        for path in ("/lease", "/boxes", "/boxes/x/exec", "/snapshots/x/fork", "/lease/end"):
            for key in ("", "Bearer wrong", "Basic " + KEY):
                answer = http.post(url + path, content=b"x", headers={"authorization": key})
                assert answer.status_code == 401 and "admin key" in answer.json()["error"]["message"]
        assert http.get(url + "/probe").status_code == 401
        assert http.put(url + f"/layers/x-{'0' * 24}", content=b"x").status_code == 401
        assert http.get(url + "/layers/..%2f..%2fetc", headers=HEADERS).status_code == 404
        assert http.put(url + "/layers/..", content=b"x", headers=HEADERS).status_code in (400, 404, 405)
        assert http.put(url + "/layers/passwd", content=b"x", headers=HEADERS).status_code == 400
        spec = {"layers": ["../../etc"], "files": [], "workdir": "/w", "env": {}, "limits": {}, "egress": None}
        spec |= {"preload": [], "token": "t" * 16}
        for path, body, says in (
            ("/boxes", b"", "truncated"),
            ("/boxes", b"\xff" * 64, "announced"),
            ("/boxes", encode({}) * 2, "follows"),
            ("/boxes", encode({"token": "t" * 16}), "it needs"),
            ("/boxes", encode(spec), "not in"),
            ("/boxes", encode({**spec, "limits": {"memory": "much"}}), "memory"),
            ("/boxes", encode({**spec, "files": [["a", 9]]}), "does not fit"),
            ("/boxes", encode({**spec, "token": 1}), "token"),
            ("/lease", encode({"have": -1}), "have"),
            ("/boxes/none/exec", encode({}), "not a box"),
            ("/snapshots/s1/drop", encode({}), "dropped"),
        ):
            answer = http.post(url + path, content=body, headers=HEADERS)
            assert 400 <= answer.status_code < 500 and says in answer.json()["error"]["message"], (path, answer.text)
        assert http.post(url + "/lease", content=b"x", headers={**HEADERS, CLIENT: "../.."}).status_code == 400
        made = http.post(url + "/boxes", content=encode({**spec, "layers": []}), headers=HEADERS)
        assert made.status_code == 200, made.text
        box = next(iter(json.loads(made.content[8:][: int.from_bytes(made.content[:4], "little")])["boxes"]))["id"]
        for op, given in (
            ("format", {}),
            ("exec", {"command": [1], "env": {}, "cwd": None, "timeout": 1, "max_output": 1}),
            ("read", {"path": 1, "max_bytes": 1}),
            ("read", {"path": "a", "max_bytes": True}),
            ("exec_python", {"source": 99, "cwd": None, "timeout": 1, "max_output": 1}),
            ("close_", {}),
            ("__class__", {}),
            ("put", {"files": [["a", -1]]}),
        ):
            assert http.post(f"{url}/boxes/{box}/{op}", content=encode(given), headers=HEADERS).status_code == 400, op
        stranger = {**HEADERS, CLIENT: "b" * 32}
        assert http.post(f"{url}/boxes/{box}/usage", content=encode({}), headers=stranger).status_code == 404
        assert http.post(f"{url}/lease/end", content=encode({"have": 0}), headers=HEADERS).status_code == 200
        text = http.get(url + "/metrics").text
        assert "woodshed_boxes_living 0" in text and "woodshed_boxes_made_total" in text
    with socket.create_connection(("127.0.0.1", hosts[0].port), timeout=10) as raw:
        head = f"POST /boxes HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n{CLIENT}: {'a' * 32}\r\n"
        raw.sendall(f"{head}content-length: 99999999999999\r\n\r\n".encode())
        assert b" 413 " in raw.recv(4096), "refused before any of it is read"


def test_boxes_of_a_killed_host_fail_and_new_ones_go_elsewhere(hosts: list[BoxHost], tmp_path: Path) -> None:
    third = BoxHost(tmp_path / "third").wait()

    async def main() -> None:
        backend = placed(third, hosts[1])
        try:
            boxes = [await backend.create(BoxSpec()) for _ in range(4)]
            there = [box for box in boxes if box.stats()["host"] == third.url]
            here = [box for box in boxes if box not in there]
            assert len(there) == len(here) == 2
            snapshot = await there[0].snapshot()
            running = asyncio.create_task(there[1].exec("sleep 99", timeout=200))
            while not (await there[1].usage())["processes"]:
                await asyncio.sleep(0.02)
            third.stop(signal.SIGKILL)
            with pytest.raises(HostLost):
                await running
            with pytest.raises(SandboxError, match=r"127\.0\.0\.1"):
                await there[0].read("a")
            with pytest.raises(SandboxError):
                await backend.fork(snapshot)
            again = [await backend.create(BoxSpec()) for _ in range(2)]
            assert {box.stats()["host"] for box in again} == {hosts[1].url}
            assert (await here[0].exec("echo on")).stdout == b"on\n"
            await there[0].close()
            fourth = BoxHost(tmp_path / "third", port=third.port)  # started again: used again, without what was there
            try:
                fourth.wait()
                while (box := await backend.create(BoxSpec())).stats()["host"] != fourth.url:
                    await asyncio.sleep(0.05)
                with pytest.raises(HostLost, match="started again"):
                    await there[1].exec("true")
                with pytest.raises(SandboxError, match="its host is lost"):
                    await backend.fork(snapshot)
                assert (await box.exec("echo new")).stdout == b"new\n"
            finally:
                await backend.close()
                fourth.stop()
        finally:
            await backend.close()

    try:
        asyncio.run(main())
    finally:
        third.stop(signal.SIGKILL)


def test_a_frozen_host_is_given_up(hosts: list[BoxHost]) -> None:
    async def main() -> None:
        backend = placed(hosts[0], silence=0.5)
        box = await backend.create(BoxSpec())
        running = asyncio.create_task(box.exec("sleep 99", timeout=200))
        await asyncio.sleep(0.2)
        hosts[0].process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(HostLost, match="does not answer"):
                await running
        finally:
            hosts[0].process.send_signal(signal.SIGCONT)
        await backend.close()

    asyncio.run(main())


_DIES = """import asyncio, os, sys
from tests.sandbox.hosts import KEY
from woodshed.sandbox.protocol import BoxSpec
from woodshed.sandbox.remote.backend import RemoteBackend
async def main():
    backend = RemoteBackend(sys.argv[1], KEY)
    box = await backend.create(BoxSpec())
    await backend.fork(await box.snapshot(), 2)
    print("made", flush=True)
    await box.exec("sleep 99", timeout=200)
asyncio.run(main())
"""


def test_a_client_that_dies_has_its_boxes_closed(hosts: list[BoxHost]) -> None:
    client = subprocess.Popen([sys.executable, "-c", _DIES, hosts[1].url], stdout=subprocess.PIPE)
    assert client.stdout is not None
    with client.stdout:
        assert client.stdout.readline() == b"made\n"
    assert hosts[1].living() == 3
    client.kill()
    client.wait()
    while hosts[1].living():
        time.sleep(0.05)
    text = httpx.get(hosts[1].url + "/metrics", trust_env=False).text
    assert "woodshed_boxes_leases_ended_total" in text and "leases_ended_total 0" not in text


def test_egress_runs_on_the_host_of_the_box_and_its_lines_come_back(hosts: list[BoxHost], tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    async def main() -> None:
        service = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = service.sockets[0].getsockname()[1]
        lines: list[dict[str, Any]] = []
        backend = placed(*hosts, egress=lines.append)
        egress = Egress((f"127.0.0.1:{port}",), {8080: f"127.0.0.1:{port}"})
        box = await backend.create(BoxSpec(egress=egress))
        fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:%d/a').read())"
        assert (
            b"hello"
            in (
                await box.exec(
                    ["python3", "-c", "import os; os.environ['no_proxy'] = ''\n" + fetch % port],
                    env={"no_proxy": "", "NO_PROXY": ""},
                )
            ).stdout
        )
        assert b"hello" in (await box.exec(["python3", "-c", fetch % 8080])).stdout
        await backend.close()
        assert {line["box"] for line in lines} == {box.id} and lines[0]["port"] == port, lines
        assert {line["host"] for line in lines} == {box.stats()["host"]}
        service.close()

    asyncio.run(main())


def test_what_a_recipe_says_of_hosts(hosts: list[BoxHost], tmp_path: Path, monkeypatch: Any) -> None:
    for wrong in (("a:9100",), ("http://a/b",), ("http://u:p@a",), ("local", "local"), ("http://a", "http://a/")):
        with pytest.raises(ValueError, match=r"address of a box server|named twice"):
            SandboxSettings(hosts=wrong)
    monkeypatch.delenv("WOODSHED_ADMIN_KEY", raising=False)
    with pytest.raises(SandboxError, match="hosts_key_file"):
        open_boxes(SandboxSettings(hosts=(hosts[0].url,)))
    (tmp_path / "key").write_text(KEY)
    settings = SandboxSettings(hosts=("local", hosts[0].url), hosts_key_file=tmp_path / "key", max_boxes=4)

    pool = open_boxes(settings)
    assert pool.probe().ok

    async def spread() -> None:
        boxes = await asyncio.gather(*(pool.create(BoxSpec()) for _ in range(4)))
        assert {box.stats().get("host", "local") for box in boxes} == {"local", hosts[0].url}
        for box in boxes[1:]:
            await box.close()
        assert len(await pool.fork(await boxes[0].snapshot(), 2)) == 2
        await pool.close()

    asyncio.run(spread())
    (tmp_path / "key").write_text("another-key-altogether")
    refused = open_boxes(SandboxSettings(hosts=(hosts[0].url,), hosts_key_file=tmp_path / "key"))
    assert "does not know our key" in refused.probe().reasons[0]
    other = open_boxes(
        SandboxSettings(hosts=(hosts[0].url, "http://127.0.0.1:9"), backend="gvisor", hosts_key_file=tmp_path / "key")
    )
    assert not other.probe().ok and "ConnectError" in other.probe().reasons[1]
