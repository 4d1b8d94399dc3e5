"""The gVisor backend for real, where this machine has runsc (``scripts/install-runsc`` fetches it)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from woodshed.sandbox.backends.gvisor.backend import GvisorBackend
from woodshed.sandbox.host.session import ShellSession
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError, Snapshot, Unsupported

from .ordinary import USER, run_as_ordinary_user


def test_layers_below_the_working_folder_come_whole(with_gvisor: Callable[..., Any], tmp_path: Path) -> None:
    lower, upper = tmp_path / "lower/workspace", tmp_path / "upper/workspace"
    for folder in ("empty/inside", "hidden", "bin"):
        (lower / folder).mkdir(parents=True)
    (lower / "hidden/file").write_text("hidden")
    (lower / "bin/tool").write_bytes(b"\x7fELF")
    (lower / "bin/tool").chmod(0o755)
    (lower / "bin/text").write_text("#!/bin/sh\n")
    (lower / "bin/text").chmod(0o644)
    (lower / "bin/other").symlink_to("tool")
    (lower / "nowhere").symlink_to("/does/not/exist")
    upper.mkdir(parents=True)
    (upper / "hidden").symlink_to("bin")

    async def body(backend: GvisorBackend) -> None:
        box = await backend.create(
            BoxSpec(layers=(lower.parent, upper.parent), files={"hidden/more": b"through a link"})
        )
        found = await box.list(recursive=True)
        assert [(name, kind) for name, kind, _ in found] == [
            ("bin", "dir"),
            ("bin/more", "file"),
            ("bin/other", "link"),
            ("bin/text", "file"),
            ("bin/tool", "file"),
            ("empty", "dir"),
            ("empty/inside", "dir"),
            ("hidden", "link"),
            ("nowhere", "link"),
        ]
        said = (await box.exec("readlink bin/other hidden nowhere; stat -c %a bin/text bin/tool")).stdout
        assert said == b"tool\nbin\n/does/not/exist\n644\n755\n"

    with_gvisor(body)


def test_files_commands_and_python(with_gvisor: Callable[..., Any], tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "layers")

    def fill(folder: Path) -> None:
        (folder / "opt/site-packages").mkdir(parents=True)
        (folder / "opt/site-packages/layered.py").write_text("NAME = 'layer'\n")
        (folder / "workspace").mkdir()
        (folder / "workspace/below.txt").write_text("from a layer")

    layer = store.path(store.add("test", fill))

    async def body(backend: GvisorBackend) -> None:
        for whole in (BoxSpec(root=tmp_path), BoxSpec(image="x")):
            with pytest.raises(Unsupported, match="takes neither root nor image"):
                await backend.create(whole)
        files = {"a.py": b"print(1)\n", "pkg/b.bin": bytes(range(256)), "run.sh": b"#!/bin/sh\necho ran $GREETING\n"}
        spec = BoxSpec(layers=(layer,), files=files, env={"GREETING": "hello"}, preload=("json",))
        box = await backend.create(spec)
        assert (await box.exec("python3 a.py; ./run.sh; cat below.txt; id -u")).stdout == (
            b"1\nran hello\nfrom a layer1000\n"
        )
        assert (await box.exec(["no-such-program"])).returncode == 127
        assert (await box.exec("cat", stdin=b"x" * 300_000)).stdout == b"x" * 300_000
        capped = await box.exec("head -c 2000000 /dev/zero", max_output=1000)
        assert len(capped.stdout) == 1000 and capped.truncated
        late = await box.exec("sleep 60 & sleep 60", timeout=1)
        assert late.timed_out and late.returncode == -9 and late.seconds < 30
        done = await box.exec_python("import json, layered, os, sys; print(json.dumps([layered.NAME, os.getuid()]))")
        assert done.stdout == b'["layer", 1000]\n', done.stderr.decode()
        assert (await box.exec_python("raise SystemExit(7)")).returncode == 7
        assert await box.get(["**/*.py", "pkg/*"]) == {"a.py": files["a.py"], "pkg/b.bin": files["pkg/b.bin"]}
        await box.write("deep/er/c.txt", b"new")
        assert await box.read("deep/er/c.txt") == b"new" and await box.read("pkg/b.bin", max_bytes=2) == b"\0\1"
        await box.delete("deep")
        with pytest.raises(FileNotFoundError):
            await box.read("deep/er/c.txt")
        with pytest.raises(PermissionError):
            await box.read("/dev/zero")
        assert [name for name, _, _ in await box.list()] == ["a.py", "below.txt", "pkg", "run.sh"]
        await box.close()
        with pytest.raises(SandboxError, match="closed"):
            await box.exec("true")

    with_gvisor(body)


def test_nothing_of_the_host_is_there(with_gvisor: Callable[..., Any]) -> None:
    attempts = """
import os, socket
def attempt(name, f):
    try:
        print(name, f())
    except BaseException as error:
        print(name, type(error).__name__)
for path in ("/root", "/home", "/etc/shadow", "/var/log", "/sys/class/net", "/opt"):
    attempt(path, lambda: sorted(os.listdir(path)) if os.path.isdir(path) else open(path).read()[:9])
attempt("write usr", lambda: open("/usr/x", "w"))
attempt("kill init", lambda: os.kill(1, 9))
attempt("trace", lambda: open("/proc/1/mem", "rb").read(1))
attempt("root", lambda: os.setuid(0))
attempt("mount", lambda: os.system("mount -t tmpfs x /tmp 2>/dev/null") == 0)
attempt("connect", lambda: socket.create_connection(("192.0.2.1", 80), 2))
attempt("names", lambda: socket.getaddrinfo("example.com", 80))
attempt("kernel", lambda: os.uname().release)
"""

    async def body(backend: GvisorBackend) -> None:
        box = await backend.create(BoxSpec())
        done = await box.exec_python(attempts, timeout=600)
        said = dict(
            line.split(" ", 1) if " " in line else (line, "")
            for line in done.stdout.decode().replace("write usr", "write").replace("kill init", "kill").splitlines()
        )
        interpreter = Path(sys.base_prefix).parts
        assert said["/root"] in ("[]", repr([interpreter[2]])), "nothing but the way to the interpreter"
        assert said["/home"] == "['box']" and said["/etc/shadow"] == "FileNotFoundError"
        assert said["write"] in ("OSError", "PermissionError") and said["kill"] == "PermissionError"
        assert (
            said["trace"] in ("PermissionError", "FileNotFoundError", "OSError") and said["root"] == "PermissionError"
        )
        assert said["mount"] == "False" and said["connect"] == "OSError" and said["names"] == "gaierror"
        assert said["kernel"] != os.uname().release, "the kernel that answers is not the host's"
        assert (await box.exec("echo alive")).stdout == b"alive\n"

    with_gvisor(body)


def test_a_hostile_box_is_no_infrastructure_error(with_gvisor: Callable[..., Any]) -> None:
    limits = Limits(memory=200 << 20, processes=24, cpu_seconds=3, file_size=4 << 20, disk=24 << 20)

    async def body(backend: GvisorBackend) -> None:
        box = await backend.create(BoxSpec(limits=limits))
        assert (await box.exec("kill -9 -1; kill -9 1")).returncode != 0
        bomb = await box.exec(":(){ :|:& };:; sleep 1", timeout=10)
        assert bomb.returncode is not None
        await box.exec("true", timeout=600)
        hog = await box.exec_python("x = bytearray(1 << 30)")
        assert b"MemoryError" in hog.stderr
        assert (await box.exec("head -c 8000000 /dev/zero > big")).returncode != 0
        full = await box.exec("for i in 1 2 3 4 5 6 7 8; do head -c 4000000 /dev/zero > f$i || exit 5; done")
        assert full.returncode == 5, "the disk is full"
        spin = await box.exec("while :; do :; done", timeout=600)
        assert spin.returncode != 0 and not spin.timed_out
        assert (await box.exec("rm -f f* big; echo alive")).stdout == b"alive\n"

    with_gvisor(body)


def test_a_box_beyond_its_memory_is_ended_and_says_so(with_gvisor: Callable[..., Any]) -> None:
    """Files in memory that no process maps count to none of them: the kernel of the box is what grows."""
    limits = Limits(memory=64 << 20, disk=16 << 20, file_size=1 << 30)
    fill = (
        "import os\nkept = []\nfor n in range(100):\n    fd = os.memfd_create('x'); kept.append(fd)\n"
        "    for _ in range(16):\n        os.write(fd, bytes(1 << 20))\nimport time; time.sleep(60)\n"
    )

    async def body(backend: GvisorBackend) -> None:
        box, other = await backend.create(BoxSpec(limits=limits)), await backend.create(BoxSpec())
        done = await box.exec_python(fill, timeout=120)
        assert done.returncode != 0 and done.out_of_memory and not done.timed_out
        assert (await box.exec("true")).out_of_memory
        with pytest.raises(OSError, match="more memory than it may"):
            await box.get(["*.py"])
        with pytest.raises(OSError, match="more memory than it may"):
            await box.snapshot("full")
        assert (await other.exec("echo fine")).stdout == b"fine\n", "the box supervisor lives, and so do other boxes"

    with_gvisor(body)


def test_a_fork_goes_on_with_memory_processes_and_files(with_gvisor: Callable[..., Any]) -> None:
    """A shell with variables, a server in the background and dirty files, forked eight times."""
    server = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Handler.count += 1
        self.send_response(200); self.end_headers(); self.wfile.write(str(Handler.count).encode())
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
"""
    ask = "python3 -c \"import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000').read().decode())\""

    async def body(backend: GvisorBackend) -> None:
        box = await backend.create(BoxSpec(files={"server.py": server.encode()}))
        shell = await ShellSession.open(box)
        await shell.send("x=41; cd /tmp; python3 /workspace/server.py & echo dirty > note; sleep 2")
        for expected in (b"1\n", b"2\n"):
            assert (await shell.send(ask)).stdout == expected
        snapshot = await box.snapshot("full")
        assert snapshot.kind == "full" and snapshot.bytes > 1 << 20
        forks = await backend.fork(snapshot, 8)

        async def go_on(number: int, fork: Any) -> None:
            same = shell.on(fork)
            done = await same.send(f"x=$((x + {number})); echo $x; pwd; cat note; echo {number} > note", timeout=120)
            assert done.stdout.decode() == f"{41 + number}\n/tmp\ndirty\n", done
            for request in range(number % 3 + 1):  # each server counts its own
                assert (await same.send(ask, timeout=120)).stdout == f"{request + 3}\n".encode()
            assert (await same.send("cat note; echo $x")).stdout.decode() == f"{number}\n{41 + number}\n"

        await asyncio.gather(*(go_on(n, fork) for n, fork in enumerate(forks, 1)))
        assert (await shell.send("cat note; echo $x")).stdout == b"dirty\n41\n", "the box itself went on as it was"
        again = await backend.fork(await forks[0].snapshot("full"))
        assert (await shell.on(forks[0]).on(again[0]).send("echo $x")).stdout == b"42\n", "a fork of a fork"
        [files] = await backend.fork(await box.snapshot("fs"))
        assert (await files.exec("cat /tmp/note; pgrep -f '[s]erver.py' || echo none")).stdout == b"dirty\nnone\n"
        await backend.drop(snapshot)
        with pytest.raises(SandboxError, match="dropped"):
            await backend.fork(snapshot)
        with pytest.raises(SandboxError, match="not one of this"):
            await backend.fork(Snapshot("s1", "fs", "namespace"))

    with_gvisor(body)


def test_a_command_under_way_is_no_answer_to_its_forks(with_gvisor: Callable[..., Any]) -> None:
    async def body(backend: GvisorBackend) -> None:
        box = await backend.create(BoxSpec())
        waiting = asyncio.create_task(box.exec("sleep 6; echo parent"))
        await asyncio.sleep(2)
        snapshots = [await box.snapshot("full"), await box.snapshot("fs")]
        forks = [(await backend.fork(snapshot))[0] for snapshot in snapshots]
        for number in range(20):  # numbers of requests grow past that of the command, which ends meanwhile
            for fork in forks:
                assert (await fork.exec(f"echo {number}; sleep 0.3")).stdout == f"{number}\n".encode()
        assert (await waiting).stdout == b"parent\n"
        assert (await forks[1].exec("pgrep sleep || echo none")).stdout == b"none\n"

    with_gvisor(body)


_OWNER = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.gvisor.backend import GvisorBackend
from woodshed.sandbox.protocol import BoxSpec
async def main():
    backend = GvisorBackend(Path(sys.argv[1]))
    boxes = [await backend.create(BoxSpec()) for _ in range(2)]
    await boxes[0].exec("sleep 1000 > /dev/null 2>&1 &")
    print("ready", flush=True)
    await asyncio.sleep(1000)
asyncio.run(main())
"""


def test_nothing_is_left_when_the_owner_is_killed(_gvisor: None, tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"ready\n"
        assert _runsc(tmp_path)
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    wait_until(lambda: not _runsc(tmp_path), "the boxes to end with their owner")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()

    async def again() -> None:
        backend = GvisorBackend(tmp_path)
        try:
            await backend.create(BoxSpec())
        finally:
            await backend.close()

    asyncio.run(again())
    assert not list(tmp_path.iterdir()), "the next start collects what the killed one left"


_ORDINARY = """
import asyncio, os, sys
from pathlib import Path
from woodshed.sandbox.backends.gvisor.backend import GvisorBackend
from woodshed.sandbox.protocol import BoxSpec
async def main():
    backend = GvisorBackend(Path(sys.argv[1]))
    box = await backend.create(BoxSpec(files={"a.txt": b"text"}))
    await box.exec("sleep 1000 > /dev/null 2>&1 & echo $! > pid")
    [fork] = await backend.fork(await box.snapshot("full"))
    done = await fork.exec("cat a.txt && kill -0 $(cat pid) && id -u")
    print(os.getuid(), done.stdout, done.stderr)
    await backend.close()
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as an ordinary user already")
def test_an_ordinary_user_can_do_it_too(_gvisor: None) -> None:
    assert run_as_ordinary_user(_ORDINARY) == f"{USER} b'text1000\\n' b''\n"


def _runsc(root: Path) -> list[str]:
    """Command lines of gVisor's processes that belong to a state folder below ``root``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdigit() and str(root) in text and "runsc" in text:
            found.append(text)
    return found
