"""Features of the gVisor backend only; skipped without runsc (``scripts/install-runsc`` installs it)."""

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
from woodshed.sandbox.protocol import BoxSpec, Limits

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
