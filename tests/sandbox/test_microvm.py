"""The microvm backend for real, where this machine has QEMU (``scripts/install-qemu`` fetches it)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from woodshed.sandbox.backends.microvm.backend import MicrovmBackend, probe_microvm
from woodshed.sandbox.host.session import ShellSession
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Egress, Limits, SandboxError, Snapshot, Unsupported

from .processes import family, state

LIMITS = Limits(memory=200 << 20, processes=24, cpu_seconds=120, file_size=4 << 20, disk=24 << 20)
Run = Callable[[Callable[[MicrovmBackend], Awaitable[Any]]], Any]


@pytest.fixture(scope="module")
def _possible() -> None:
    probe = probe_microvm(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert {"full_snapshot", "fork"} <= probe.capabilities


@pytest.fixture(scope="module")
def with_microvm(_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One backend and one loop for all: what costs time is a guest's boot."""
    root = tmp_path_factory.mktemp("microvm") / "state"
    with asyncio.Runner() as runner:
        backend = runner.run(_make(root))
        yield lambda body: runner.run(body(backend))
        runner.run(backend.close())
    assert not list(root.iterdir())


async def _make(root: Path) -> MicrovmBackend:
    return MicrovmBackend(root)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> BoxSpec:
    """Of every box here but for its files and environment, so that one guest has to boot for all tests."""
    store = LayerStore(tmp_path_factory.mktemp("layers"))

    def fill(folder: Path) -> None:
        (folder / "opt/site-packages").mkdir(parents=True)
        (folder / "opt/site-packages/layered.py").write_text("NAME = 'layer'\n")
        (folder / "workspace").mkdir()
        (folder / "workspace/below.txt").write_text("from a layer")

    def fill_above(folder: Path) -> None:
        (folder / "opt/site-packages").mkdir(parents=True)
        (folder / "opt/site-packages/layered.py").write_text("NAME = 'upper layer'\n")

    layers = tuple(store.path(store.add("test", each)) for each in (fill, fill_above))
    return BoxSpec(layers=layers, preload=("json",), limits=LIMITS)


def test_files_commands_and_python(with_microvm: Run, spec: BoxSpec) -> None:
    async def body(backend: MicrovmBackend) -> None:
        files = {"a.py": b"print(1)\n", "pkg/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\necho ran $GREETING\n"}
        box = await backend.create(replace(spec, files=files, env={"GREETING": "hello"}))
        done = await box.exec("python3 a.py; ./run.sh; cat below.txt; id -u; echo x >> below.txt; tail -c 2 below.txt")
        assert done.stdout == b"1\nran hello\nfrom a layer1000\nx\n", done
        assert (await box.exec(["no-such-program"])).returncode == 127
        assert (await box.exec("cat", stdin=b"x" * 300_000)).stdout == b"x" * 300_000
        capped = await box.exec("head -c 2000000 /dev/zero", max_output=1000)
        assert len(capped.stdout) == 1000 and capped.truncated
        late = await box.exec("sleep 60 & sleep 60", timeout=1)
        assert late.timed_out and late.returncode == -9 and late.seconds < 60
        report = "import json, layered, os; print(json.dumps([layered.NAME, os.getuid()]))"
        done = await box.exec_python(report, timeout=600)
        assert done.stdout == b'["upper layer", 1000]\n', done.stderr.decode()
        done = await box.exec_python("import os; print(os.environ['GREETING']); raise SystemExit(7)", timeout=600)
        assert (done.returncode, done.stdout) == (7, b"hello\n")
        assert await box.get(["**/*.py", "pkg/*"]) == {"a.py": files["a.py"], "pkg/b.bin": files["pkg/b.bin"]}
        await box.write("deep/er/c.txt", b"new")
        assert await box.read("deep/er/c.txt") == b"new" and await box.read("pkg/b.bin", max_bytes=2) == b"\0\1"
        await box.delete("deep")
        with pytest.raises(FileNotFoundError):
            await box.read("deep/er/c.txt")
        with pytest.raises(PermissionError):
            await box.read("/dev/zero")
        assert [name for name, _, _ in await box.list()] == ["a.py", "below.txt", "pkg", "run.sh"]
        other = await backend.create(replace(spec, env={"GREETING": "bye"}))
        assert (await other.exec("echo $GREETING; ls")).stdout == b"bye\nbelow.txt\n", "of the same template"
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")
        await other.close()

    with_microvm(body)


def test_a_hostile_box_is_no_infrastructure_error(with_microvm: Run, spec: BoxSpec) -> None:
    async def body(backend: MicrovmBackend) -> None:
        box = await backend.create(spec)
        assert (await box.exec("uname -r")).stdout.decode().strip() != os.uname().release
        assert (await box.exec("kill -9 -1; kill -9 1")).returncode != 0
        bomb = await box.exec(":(){ :|:& };:; sleep 1", timeout=5)
        assert bomb.returncode is not None
        await box.exec("true", timeout=600)
        hog = await box.exec_python("x = bytearray(1 << 30)", timeout=600)
        assert b"MemoryError" in hog.stderr
        assert (await box.exec("head -c 8000000 /dev/zero > big")).returncode != 0
        full = await box.exec("for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > f$i || exit 5; done")
        assert full.returncode == 5, "the disk is full"
        seconds = await box.exec_python(
            "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0])", timeout=60
        )
        assert seconds.stdout == b"120\n", "an emulated second is long: kept as elsewhere, and tested there"
        assert (await box.exec("rm -f f* big; echo alive")).stdout == b"alive\n"
        assert (await box.usage())["disk"] < 24 << 20
        await box.close()
        with pytest.raises(Unsupported, match="no network"):
            await backend.create(BoxSpec(egress=Egress(allow=("example.org",))))
        for whole in (BoxSpec(root=Path("/")), BoxSpec(image="x")):
            with pytest.raises(Unsupported, match="takes neither root nor image"):
                await backend.create(whole)

    with_microvm(body)


_FILL = """
import os, time
kept = []
for n in range(300):
    fd = os.memfd_create("x")
    kept.append(fd)
    for _ in range(3):
        os.write(fd, bytes(1 << 20))
time.sleep(600)
"""


def test_memory_that_no_process_has_mapped_ends_with_the_guests(with_microvm: Run, spec: BoxSpec) -> None:
    """The machine has so much and no more: its own kernel sees to it, and nobody else notices."""

    async def body(backend: MicrovmBackend) -> None:
        box = await backend.create(spec)
        done = await box.exec_python(_FILL, timeout=8)
        assert done.returncode != 0, "ended by the guest's kernel, or still on its way when its time was over"
        again = await box.exec("echo alive", timeout=120)
        assert again.stdout == b"alive\n" or again.out_of_memory, "or its kernel ended, which says so"
        await box.close()

    with_microvm(body)


def test_a_fork_goes_on_with_memory_processes_and_files(with_microvm: Run, spec: BoxSpec) -> None:
    """A shell with variables, a server in the background and dirty files. ``benchmarks/sandboxes.py`` forks eight."""
    server = """
import socket, sys
count, out = 0, socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
while True:
    caller, _ = out.accept()
    count += 1
    caller.sendall(b"%d" % count)
    caller.close()
"""
    ask = "import socket; print(socket.create_connection(('127.0.0.1', 8000)).recv(9).decode())"

    async def body(backend: MicrovmBackend) -> None:
        box = await backend.create(replace(spec, files={"server.py": server.encode()}))
        shell = await ShellSession.open(box)
        await shell.send("x=41; cd /tmp; python3 -IS /workspace/server.py > up 2>&1 & echo dirty > note", timeout=300)
        up = await shell.send("until [ -s up ]; do sleep 0.1; done; cat up", timeout=300)
        assert up.stdout == b"up\n", up
        first = await box.exec_python(ask, timeout=600)
        assert first.stdout == b"1\n", first
        under_way = asyncio.create_task(box.exec("sleep 4; echo parent"))
        await asyncio.sleep(0.5)
        snapshot = await box.snapshot("full")
        assert snapshot.kind == "full" and snapshot.bytes > 1 << 20
        await box.exec("date -s '2001-01-01' 2> /dev/null; echo changed > /tmp/note")
        forks = await backend.fork(snapshot, 3)

        async def go_on(number: int, fork: Any) -> bytes:
            same = shell.on(fork)
            said = await same.send(f"x=$((x + {number})); echo $x; pwd; cat note; echo {number} > note", timeout=120)
            assert said.stdout.decode() == f"{41 + number}\n/tmp\ndirty\n", said
            assert (await fork.exec_python(ask, timeout=600)).stdout == b"2\n", "each server counts its own"
            renewed = await fork.exec_python("import os, time; print(os.urandom(16).hex(), time.time())", timeout=600)
            random, now = renewed.stdout.split()
            assert abs(float(now) - time.time()) < 60
            assert (await same.send("cat note; echo $x")).stdout.decode() == f"{number}\n{41 + number}\n"
            return bytes(random)

        randoms = await asyncio.gather(*(go_on(n, fork) for n, fork in enumerate(forks, 1)))
        assert len(set(randoms)) == len(forks), "forks have randomness of their own"
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
        with pytest.raises(SandboxError, match="not one of this"):
            await backend.fork(Snapshot("s1", "fs", "gvisor"))
        for each in (box, *forks, *again, files):
            await each.close()

    with_microvm(body)


def test_a_box_that_cannot_be_made_says_why(with_microvm: Run, tmp_path: Path) -> None:
    async def body(backend: MicrovmBackend) -> None:
        with pytest.raises(SandboxError, match=r"layer .*nothing: no such folder"):
            await backend.create(BoxSpec(layers=(Path("/nothing"),)))
        with pytest.raises(SandboxError, match="too many; a microvm box can have"):
            await backend.create(BoxSpec(layers=(tmp_path,) * 40))

    with_microvm(body)


_OWNER = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.microvm.backend import MicrovmBackend
async def main():
    backend = MicrovmBackend(Path(sys.argv[1]))
    await backend._spawner.start()
    print(backend._spawner.pid, flush=True)
    from woodshed.sandbox.protocol import BoxSpec
    await backend.create(BoxSpec())
asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(_possible: None, tmp_path: Path) -> None:
    """Killed while its first guest boots."""
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        box_supervisor = int(owner.stdout.readline())
        machines = wait_until(lambda: [pid for pid in family(box_supervisor) if _is_qemu(pid)], "a machine to be there")
        wait_until(lambda: _is_filtered(machines[0]), "the machine to be confined")
        confined = Path(f"/proc/{machines[0]}/status").read_text()
        assert "CapEff:\t0000000000000000" in confined and "NoNewPrivs:\t1" in confined
        assert os.getuid() != 0 or Path(f"/proc/{machines[0]}").stat().st_uid != 0
        assert "root" not in os.listdir(f"/proc/{machines[0]}/root/home"), "its root is not the machine's"
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    wait_until(lambda: all(state(pid) in ("", "Z") for pid in machines), "the machine to end with its owner")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def _is_qemu(pid: int) -> bool:
    try:
        return b"/qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    except OSError:
        return False


def _is_filtered(pid: int) -> bool:
    """QEMU installs its filter a little after its start."""
    return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
