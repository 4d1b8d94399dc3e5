"""The contract of ``protocol.Sandbox``, on every kind of boxes that works here and on boxes of two hosts."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from woodshed.sandbox.backends.docker.engine import ENGINES
from woodshed.sandbox.host.session import ShellSession
from woodshed.sandbox.protocol import BoxSpec, Egress, Paused, SandboxError, Snapshot, Unsupported

from .kinds import FIXTURES, LIVE, NAMES, Kind, engine_runner, marked, working_engine

OWN_KERNEL = ("gvisor", "microvm")
AWAY = 1.0
"""Seconds of a pause."""


@pytest.fixture(params=marked(NAMES))
def kind(request: pytest.FixtureRequest, specs: Callable[[str], BoxSpec], tmp_path: Path) -> Kind:
    """Each kind, or those that a test names by ``parametrize(..., indirect=True)``."""
    name = request.param
    if name in FIXTURES:
        run = request.getfixturevalue(FIXTURES[name])
    else:
        run = engine_runner(working_engine(name), tmp_path / "state")
    return Kind(name, run, specs(name))


def of_kinds(*names: str) -> Any:
    return pytest.mark.parametrize("kind", marked(names), indirect=True)


def test_files_commands_and_python(kind: Kind) -> None:
    async def body(backend: Any) -> None:
        files = {"a.py": b"print(1)\n", "pkg/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\necho ran $GREETING\n"}
        box = await backend.create(replace(kind.spec, files=files, env={"GREETING": "hello"}))
        done = await box.exec("python3 a.py; ./run.sh; cat below.txt; id -u; echo x >> below.txt; tail -c 2 below.txt")
        assert done.stdout == b"1\nran hello\nfrom a layer1000\nx\n", done
        done = await box.exec("python3 -c 'import layered; print(layered.NAME)'", timeout=600)
        assert done.stdout == b"upper layer\n", done
        assert (await box.exec(["no-such-program"])).returncode == 127
        assert (await box.exec("cat", stdin=b"x" * 300_000)).stdout == b"x" * 300_000
        capped = await box.exec("head -c 2000000 /dev/zero", max_output=1000)
        assert len(capped.stdout) == 1000 and capped.truncated
        late = await box.exec("sleep 60 & sleep 60", timeout=1)
        assert late.timed_out and late.returncode == -9 and late.seconds < (60 if kind.name == "microvm" else 30)
        report = "import json, layered, os; print(json.dumps([layered.NAME, os.getuid()]))"
        done = await box.exec_python(report, timeout=600)
        assert done.stdout == b'["upper layer", 1000]\n', done.stderr.decode()
        done = await box.exec_python("import os; print(os.environ['GREETING']); raise SystemExit(7)", timeout=600)
        assert (done.returncode, done.stdout) == (7, b"hello\n")
        assert await box.get(["**/*.py", "pkg/*"]) == {"a.py": files["a.py"], "pkg/b.bin": files["pkg/b.bin"]}
        await box.write("deep/er/c.txt", b"new")
        assert await box.read("deep/er/c.txt") == b"new" and await box.read("pkg/b.bin", max_bytes=2) == b"\0\1"
        assert await box.read("pkg/b.bin") == files["pkg/b.bin"]
        await box.delete("deep")
        with pytest.raises(FileNotFoundError):
            await box.read("deep/er/c.txt")
        with pytest.raises(PermissionError):
            await box.read("/dev/zero")
        assert [name for name, _, _ in await box.list()] == ["a.py", "below.txt", "pkg", "run.sh"]
        other = await backend.create(replace(kind.spec, env={"GREETING": "bye"}))
        assert (await other.exec("echo $GREETING; ls")).stdout == b"bye\nbelow.txt\n", "nothing of the first box"
        await box.close()
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")
        await other.close()

    kind.run(body)


@of_kinds("gvisor", "microvm", *ENGINES)
def test_a_hostile_box_is_no_infrastructure_error(kind: Kind) -> None:
    """A namespace box, whose kernel is the host's, has ``test_limits.py``."""

    async def body(backend: Any) -> None:
        box = await backend.create(kind.spec)
        release = (await box.exec("uname -r")).stdout.decode().strip()
        assert (release != os.uname().release) == (kind.name in OWN_KERNEL)
        assert (await box.exec("kill -9 -1; kill -9 1")).returncode != 0
        bomb = await box.exec(":(){ :|:& };:; sleep 1", timeout=5)
        assert bomb.returncode is not None
        await box.exec("true", timeout=600)
        hog = await box.exec_python("x = bytearray(1 << 30)", timeout=600)
        assert b"MemoryError" in hog.stderr
        assert (await box.exec("head -c 8000000 /dev/zero > big")).returncode != 0
        if kind.name in OWN_KERNEL:  # no engine bounds a container's disk
            full = await box.exec("for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > f$i || exit 5; done")
            assert full.returncode == 5, "the disk is full"
            assert (await box.usage())["disk"] <= 24 << 20
        if kind.name == "microvm":
            seconds = await box.exec_python(
                "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0])", timeout=60
            )
            assert seconds.stdout == b"120\n", "an emulated second is long: enforced as elsewhere, and tested there"
        else:
            spin = await box.exec("while :; do :; done", timeout=600)
            assert spin.returncode != 0 and not spin.timed_out
        assert (await box.exec("rm -f f* big; echo alive")).stdout == b"alive\n"
        await box.close()

    kind.run(body)


def test_forks_of_files(kind: Kind) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(replace(kind.spec, files={"made": b"old"}))
        await box.exec("echo new > made; sleep 1000 > /dev/null 2>&1 &")
        snapshot = await box.snapshot()
        assert snapshot.kind == "fs" and snapshot.bytes > 0
        running = (await box.usage())["processes"]
        assert running == 0 if kind.name in ("namespace", "hosts") else running >= 1, "the box itself goes on"
        await box.write("made", b"changed")
        fork, other = await backend.fork(snapshot, 2)
        assert await fork.read("made") == b"new\n" and (await fork.usage())["processes"] == 0
        assert (await fork.exec("cat below.txt")).stdout == b"from a layer"
        await fork.write("made", b"mine")
        assert await other.read("made") == b"new\n" and await box.read("made") == b"changed"
        await backend.drop(snapshot)
        assert (await fork.exec("cat made")).stdout == b"mine", "a fork outlives its snapshot"
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)
        for each in (box, fork, other):
            await each.close()

    kind.run(body)


_SERVER = b"""
import socket
count, out = 0, socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
while True:
    caller, _ = out.accept()
    count += 1
    caller.sendall(b"%d" % count)
    caller.close()
"""
_ASK = "import socket; print(socket.create_connection(('127.0.0.1', 8000)).recv(9).decode())"


@of_kinds(*LIVE)
def test_a_fork_goes_on_with_memory_processes_and_files(kind: Kind) -> None:
    """A shell with variables, a server in the background and dirty files. ``benchmarks/sandboxes.py`` forks eight."""
    forked = 3 if kind.name == "microvm" else 8

    async def body(backend: Any) -> None:
        box = await backend.create(replace(kind.spec, files={"server.py": _SERVER}))
        shell = await ShellSession.open(box)
        await shell.send("x=41; cd /tmp; python3 -IS /workspace/server.py > up 2>&1 & echo dirty > note", timeout=300)
        up = await shell.send("until [ -s up ]; do sleep 0.1; done; cat up", timeout=300)
        assert up.stdout == b"up\n", up
        for expected in (b"1\n", b"2\n"):
            asked = await box.exec_python(_ASK, timeout=600)
            assert asked.stdout == expected, asked
        under_way = asyncio.create_task(box.exec("sleep 4; echo parent"))
        await asyncio.sleep(0.5)
        snapshot = await box.snapshot("full")
        assert snapshot.kind == "full" and snapshot.bytes > 1 << 20
        await box.exec("echo changed > /tmp/note")
        forks = await backend.fork(snapshot, forked)

        async def go_on(number: int, fork: Any) -> None:
            same = shell.on(fork)
            said = await same.send(f"x=$((x + {number})); echo $x; pwd; cat note; echo {number} > note", timeout=120)
            assert said.stdout.decode() == f"{41 + number}\n/tmp\ndirty\n", said
            for request in range(1 if kind.name == "microvm" else number % 3 + 1):
                asked = await fork.exec_python(_ASK, timeout=600)
                assert asked.stdout == f"{request + 3}\n".encode(), "each server counts its own"
            assert (await same.send("cat note; echo $x", timeout=120)).stdout.decode() == f"{number}\n{41 + number}\n"

        await asyncio.gather(*(go_on(n, fork) for n, fork in enumerate(forks, 1)))
        assert (await under_way).stdout == b"parent\n", "to the box alone"
        assert (await shell.send("cat note; echo $x")).stdout == b"changed\n41\n", "the box itself went on as it was"
        again = await backend.fork(await forks[0].snapshot("full"))
        assert (await shell.on(again[0]).send("echo $x; cat note")).stdout == b"42\n1\n", "a fork of a fork"
        [files] = await backend.fork(await box.snapshot("fs"))
        assert (await files.exec("cat /tmp/note; pgrep -f '[s]erver.py' || echo none")).stdout == b"changed\nnone\n"
        await backend.drop(snapshot)
        assert (await shell.on(forks[1]).send("echo $x")).stdout == b"43\n", "forks outlive it"
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)
        for each in (box, *forks, *again, files):
            await each.close()

    kind.run(body)


@of_kinds(*(name for name in NAMES if name not in LIVE))
def test_a_backend_without_memory_snapshots_says_so(kind: Kind) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(kind.spec)
        with pytest.raises(Unsupported, match="memory snapshots"):
            await box.snapshot("full")
        await box.close()

    kind.run(body)


REFUSED = {
    "gvisor": {"root": "takes neither root nor image", "image": "takes neither root nor image"},
    "microvm": {
        "root": "takes neither root nor image",
        "image": "takes neither root nor image",
        "egress": "gives boxes no network",
    },
    "namespace": {"image": "runs no images"},
    "hosts": {"root": "do not support 'root'", "image": "do not support 'image'"},
    **{engine: {"egress": "gives boxes no network"} for engine in ENGINES},
}
ASKED = {"root": Path("/"), "image": "x", "egress": Egress(allow=("example.org",))}


def test_what_a_backend_cannot_do_is_refused(kind: Kind) -> None:
    async def body(backend: Any) -> None:
        for asked, why in REFUSED[kind.name].items():
            with pytest.raises(Unsupported, match=why):
                await backend.create(BoxSpec(**{asked: ASKED[asked]}))
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(Snapshot("s1", "fs", "another"))

    kind.run(body)


@of_kinds("namespace", "gvisor", "microvm")
def test_a_missing_layer_is_named(kind: Kind, tmp_path: Path) -> None:
    async def body(backend: Any) -> None:
        with pytest.raises(SandboxError, match=r"layer .*missing: no such folder"):
            await backend.create(BoxSpec(layers=(tmp_path / "missing",)))

    kind.run(body)


@of_kinds(*(name for name in NAMES if name != "microvm"))
def test_a_paused_box_stands_still_by_its_own_clock(kind: Kind) -> None:
    """A command that writes the time is stopped for AWAY, and goes on."""

    async def times(box: Any) -> list[float]:
        try:
            return [int(line) / 1e9 for line in (await box.read("times")).split()]
        except FileNotFoundError:
            return []

    async def at_least(box: Any, lines: int) -> None:
        while len(await times(box)) < lines:
            await asyncio.sleep(0.02)

    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        running = asyncio.create_task(box.exec("while [ ! -e end ]; do date +%s%N >> times; sleep 0.01; done"))
        await at_least(box, 1)
        await box.exec("sleep 300 > /dev/null 2>&1 &")
        await box.pause()
        assert box.stats()["paused"]
        for request in (box.exec("true"), box.read("times"), box.snapshot()):
            with pytest.raises(Paused, match=r"resume\(\) it first"):
                await request
        await asyncio.sleep(AWAY)
        await box.resume()
        assert (await box.usage())["processes"] >= 2
        await at_least(box, len(await times(box)) + 2)
        await box.write("end", b"")
        done = await running
        assert done.returncode == 0 and not done.timed_out
        found = await times(box)
        assert max(b - a for a, b in itertools.pairwise(found)) >= AWAY, "it ran on while it was paused"

    kind.run(body)


@of_kinds("microvm")
def test_a_backend_without_pause_says_so(kind: Kind) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(kind.spec)
        with pytest.raises(Unsupported, match="cannot pause boxes"):
            await box.pause()
        assert (await box.exec("echo on")).stdout == b"on\n"
        await box.close()

    kind.run(body)
