"""The landlock backend for real. What escapes read in /proc, which is closed here, is asked of the kernel itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from woodshed.sandbox.landlock import rules
from woodshed.sandbox.landlock.backend import LandlockBackend
from woodshed.sandbox.landlock.probe import probe_landlock
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Egress, Limits, SandboxError, Unsupported

from ..pausing import pause_and_look


@pytest.fixture(scope="session")
def _possible() -> None:
    probe = probe_landlock(None)
    if not probe.ok:
        pytest.skip("; ".join(probe.reasons))
    assert "weaker" in probe.capabilities
    assert probe.limits_in_force["processes"] == "RLIMIT_NPROC" and "disk" not in probe.limits_in_force


@pytest.fixture
def with_landlock(_possible: None) -> Callable[..., Any]:
    def run(body: Callable[[LandlockBackend], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            backend = LandlockBackend()  # where other users can get: pytest's own folders are closed to them
            try:
                return await body(backend)
            finally:
                place = backend._place
                await backend.close()
                assert place is None or not place.exists()

        return asyncio.run(main())

    return run


def test_files_commands_layers_and_forks(with_landlock: Callable[..., Any], tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "layers")

    def fill(folder: Path) -> None:
        (folder / "opt/site-packages").mkdir(parents=True)
        (folder / "opt/site-packages/layered.py").write_text("NAME = 'layer'\n")
        (folder / "workspace").mkdir()
        (folder / "workspace/below.txt").write_text("below\n")

    def misplace(folder: Path) -> None:
        (folder / "etc").mkdir()
        (folder / "etc/tool.conf").write_text("x")

    layer, misplaced = (store.path(store.add("test", each)) for each in (fill, misplace))

    async def body(backend: LandlockBackend) -> None:
        files = {"a.py": b"import layered; print(layered.NAME)\n", "/workspace/sub/run.sh": b"#!/bin/sh\necho $WHO\n"}
        box = await backend.create(BoxSpec(layers=(layer,), files=files, env={"WHO": "me"}))
        done = await box.exec("python3 a.py; sub/run.sh; cat below.txt; git init -q . && git status --short | wc -l")
        assert done.stdout == b"layer\nme\nbelow\n3\n", done
        assert (await box.exec_python("import layered, json; print(layered.NAME)")).stdout == b"layer\n"
        assert await box.read("/workspace/sub/run.sh") == files["/workspace/sub/run.sh"]
        assert await box.get(["**/*.sh"]) == {"sub/run.sh": files["/workspace/sub/run.sh"]}
        assert (await box.exec(["no-such-program"])).returncode == 127
        late = await box.exec("sleep 60 & sleep 60", timeout=1)
        assert late.timed_out and late.returncode == -9
        await box.exec("sleep 1000 > /dev/null 2>&1 & mkfifo pipe; ln -s /etc/shadow link; echo new > made")
        assert (await box.usage())["processes"] == 1
        snapshot = await box.snapshot()
        assert (await box.usage())["processes"] == 0
        [fork] = await backend.fork(snapshot)
        await box.write("made", b"changed")
        assert await fork.read("made") == b"new\n"
        for path in ("link", "/etc/passwd", "/proc/self/status"):
            with pytest.raises(PermissionError):
                await fork.read(path)
        with pytest.raises(Unsupported, match="no memory snapshots"):
            await box.snapshot("full")
        for spec in (BoxSpec(egress=Egress(("example.org",))), BoxSpec(root=tmp_path), BoxSpec(image="x")):
            with pytest.raises(Unsupported, match="use the namespace backend"):
                await backend.create(spec)
        with pytest.raises(Unsupported, match=r"/etc/tool\.conf"):
            await backend.create(BoxSpec(layers=(misplaced,)))
        await backend.drop(snapshot)
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)

    with_landlock(body)


def test_a_command_has_nothing_of_the_host(with_landlock: Callable[..., Any]) -> None:
    held = """
import ctypes, os, struct
def is_open(fd):
    try:
        return bool(os.fstat(fd))
    except OSError:
        return False
data = ctypes.create_string_buffer(24)
ctypes.CDLL(None).capget(ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0)), data)
print(sum(data.raw), sorted(k for k in os.environ if "SECRET" in k), [fd for fd in range(3, 256) if is_open(fd)])
"""
    meddle = (
        "import os, sys\ntry:\n    os.kill(int(sys.argv[1]), 9); print('killed')\n"
        "except OSError as error:\n    print(error.errno)\n"
    )

    async def body(backend: LandlockBackend) -> None:
        box, other = (
            await backend.create(BoxSpec(files={"meddle.py": meddle.encode()})),
            await backend.create(BoxSpec()),
        )
        done = await box.exec_python(held)
        assert done.stdout == b"0 [] []\n", done
        parent = (await box.exec("echo $PPID")).stdout.decode().strip()
        theirs = (await other.exec("sleep 1000 > /dev/null 2>&1 & echo $!")).stdout.decode().strip()
        for pid in (parent, theirs, str(os.getpid()), "1"):
            assert (await box.exec(["python3", "meddle.py", pid])).stdout == b"1\n", "no right to signal it"
        assert (
            await box.exec(f"ls {other.folder} {other.folder.parent}; cat {other.folder}/workspace/x")
        ).stdout == b""
        assert (await box.exec("kill -9 -1; echo alive")).stdout in (b"alive\n", b"")
        assert (await other.usage())["processes"] == 1 and (await box.exec("echo here")).stdout == b"here\n"

    os.environ["WOODSHED_SECRET"] = "of the host"
    try:
        with_landlock(body)
    finally:
        del os.environ["WOODSHED_SECRET"]


def test_limits_hold(with_landlock: Callable[..., Any]) -> None:
    limits = Limits(memory=200 << 20, processes=24, cpu_seconds=1, file_size=4 << 20)

    async def body(backend: LandlockBackend) -> None:
        box = await backend.create(BoxSpec(limits=limits))
        await box.exec(":(){ :|:& };:; sleep 1", timeout=2)
        assert b"MemoryError" in (await box.exec_python("x = bytearray(1 << 30)")).stderr
        assert (await box.exec("head -c 8000000 /dev/zero > big")).returncode != 0
        spin = await box.exec("while :; do :; done", timeout=600)
        assert spin.returncode != 0 and not spin.timed_out
        assert (await box.exec("echo alive")).stdout == b"alive\n"

    with_landlock(body)


def test_a_pause(with_landlock: Callable[..., Any]) -> None:
    async def body(backend: LandlockBackend) -> None:
        await pause_and_look(await backend.create(BoxSpec()))

    with_landlock(body)


_OWNER = """
import asyncio, sys
from woodshed.sandbox.landlock.backend import LandlockBackend
from woodshed.sandbox.protocol import BoxSpec
async def main():
    backend = LandlockBackend()
    box = await backend.create(BoxSpec())
    done = await box.exec("setsid sh -c 'sleep 1000 & echo $!; exec sleep 1000' > out 2>&1 & sleep 0.5; cat out")
    print(box.process.pid, done.stdout.decode().strip(), backend._place, flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(_possible: None) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        first, background, place = owner.stdout.readline().split()
        assert _alive(first) and _alive(background)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    wait_until(lambda: not _alive(first) and not _alive(background), "the box to end with its owner")

    async def again() -> None:
        backend = LandlockBackend()
        try:
            await backend.create(BoxSpec())
        finally:
            await backend.close()

    asyncio.run(again())
    assert not Path(place).exists(), "the next start collects what the killed one left"


def test_rules_leave_out_what_is_hidden(tmp_path: Path) -> None:
    for name in ("a/keep", "a/hide/deep", "b"):
        (tmp_path / name).mkdir(parents=True)
    top = str(tmp_path)
    assert rules.without(top, [f"{top}/a/hide"]) == [f"{top}/a/keep", f"{top}/b"]
    assert rules.without(top, ["/elsewhere"]) == [top] and rules.without(top, [top]) == []


def _alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
