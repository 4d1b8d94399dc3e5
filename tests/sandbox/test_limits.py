"""Nothing that runs in a box exceeds its limits, and nothing it does breaks the box for its owner."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import time

import pytest

from woodshed.sandbox.guest.processes import memory
from woodshed.sandbox.protocol import BoxSpec, Limits

SMALL = Limits(memory=256 << 20, processes=20, cpu_seconds=1, file_size=1 << 20, disk=4 << 20)


async def _alive(box) -> None:
    assert (await box.exec("echo alive")).stdout == b"alive\n"


def test_one_process_gets_a_memory_error_and_many_are_killed(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(limits=Limits(memory=256 << 20, processes=20)))
        assert b"MemoryError" in (await box.exec_python("b'x' * (300 << 20)")).stderr
        grow = (
            "import os, time\n"
            "for _ in range(4):\n"
            "    if os.fork() == 0: data = bytearray(os.urandom(1 << 20)) * 120; time.sleep(30)\n"
            "time.sleep(30)"
        )
        result = await box.exec_python(grow, timeout=600)
        assert result.out_of_memory and result.returncode == -9 and not result.timed_out
        await _alive(box)

    with_backend(body)


def test_no_memory_outside_of_processes(with_backend):
    """What no process has mapped counts to none, so it could be any amount."""

    async def body(backend):
        box = await backend.create(BoxSpec(limits=SMALL))
        source = (
            "import ctypes, errno, os\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "for call in (lambda: libc.memfd_create(b'x', 0), lambda: libc.shmget(0, 4096, 0o1600),\n"
            "             lambda: libc.msgget(0, 0o1600), lambda: libc.semget(0, 32000, 0o1600)):\n"
            "    ctypes.set_errno(0)\n"
            "    print(call(), errno.errorcode[ctypes.get_errno()])"
        )
        result = await box.exec_python(source)
        assert result.stdout.splitlines() == [b"-1 ENOSYS"] * 4, result

    with_backend(body)


def test_input_of_any_size_is_read_to_its_end_or_dropped(with_backend):
    """Larger than a pipe holds, and larger than one may become, without keeping anything for a command that is gone."""

    async def body(backend):
        box = await backend.create(BoxSpec())
        for size in (1, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 3 << 20):
            data = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
            digest = hashlib.sha256(data).hexdigest().encode()
            assert (await box.exec("sha256sum", stdin=data)).stdout.split()[0] == digest, size
            assert (await box.exec("head -c 1 >/dev/null", stdin=data)).returncode == 0
        waiting = asyncio.create_task(box.exec("sleep 1", stdin=data))
        while (await box.usage())["processes"] < 2:  # the command, and who feeds it
            assert not waiting.done()
            await asyncio.sleep(0.02)
        await waiting
        while (await box.usage())["processes"]:
            await asyncio.sleep(0.02)

    with_backend(body)


def test_fork_bomb(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(limits=SMALL))
        count = (
            "import os\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: os.read(0, 1); os.pause()\n"
            "        n += 1\nexcept (OSError, AttributeError): print(n, flush=True)\nimport time; time.sleep(0.1)"
        )
        source = count.replace("os.read(0, 1); os.pause()", "import signal; signal.pause()")
        result = await box.exec_python(source, timeout=600)
        assert 0 < int(result.stdout.split()[0]) <= 20
        await _alive(box)  # although the leftovers fill the box
        bomb = await box.exec("b() { b | b & }; b; sleep 0.3", timeout=10)
        assert bomb.returncode is not None
        await _alive(box)

    with_backend(body)


def test_no_more_sizes_are_read_once_a_command_is_to_end():
    """With hundreds of busy processes that would take many times as long as the command may run."""
    with subprocess.Popen(["/usr/bin/sleep", "600"]) as child:
        try:
            assert memory() > memory(until=time.monotonic() + 3600) // 2 > 0
            assert memory(until=time.monotonic()) == 0
        finally:
            child.kill()


def test_disk_and_file_size(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(limits=SMALL))
        result = await box.exec("for n in 1 2 3 4 5 6; do head -c 1000000 /dev/zero > f$n || exit 9; done; true")
        assert result.returncode == 9 and b"No space left" in result.stderr
        with pytest.raises(OSError, match="space"):
            await box.write("more", bytes(900_000))
        await _alive(box)
        await box.exec("rm -f f* more")
        assert (await box.exec("head -c 2000000 /dev/zero > big; stat -c %s big")).stdout == b"1048576\n"
        with pytest.raises(OSError, match="large"):
            await box.write("big2", bytes(2 << 20))
        await box.exec("rm -f big*; head -c 99000000 /dev/zero > /dev/shm/x; head -c 99000000 /dev/zero > /tmp/x")
        usage = await box.usage()
        assert usage["disk"] <= 4 << 20
        await _alive(box)

    with_backend(body)


def test_files_and_descriptors_are_counted_too(with_backend):
    """Each holds memory of the kernel's, however little it holds itself."""
    source = """
import os, resource, sys
made = 0
try:
    while made < 40000:
        os.mknod(f"{sys.argv[1]}/{made}")
        made += 1
except OSError as error:
    print(made, error.strerror, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""

    async def body(backend):
        box = await backend.create(BoxSpec(limits=SMALL))
        for folder in ("/workspace", "/dev/shm"):
            said = (await box.exec(["python3", "-c", source, folder], timeout=120)).stdout.decode().split()
            assert 16_000 < int(said[0]) < 16_384 + 1 and "space" in said, said
            assert int(said[-1]) <= 1024
        await _alive(box)

    with_backend(body)


def test_nothing_in_a_box_makes_others_the_first_to_go(with_backend):
    source = "open('/proc/self/oom_score_adj', 'w').write('0')"

    async def body(backend):
        box = await backend.create(BoxSpec())
        for done in (await box.exec_python(source), await box.exec(["python3", "-c", source])):
            assert done.returncode == 1 and b"Read-only file system" in done.stderr
        assert (await box.exec("cat /proc/self/oom_score_adj")).stdout == b"900\n"
        assert (await box.exec("echo to the standard error > /proc/self/fd/2")).stderr == b"to the standard error\n"

    with_backend(body)


def test_cpu_and_wall_time(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(limits=SMALL))
        spin = await box.exec_python("while True: pass", timeout=600)
        assert spin.returncode in (-24, -9) and not spin.timed_out
        spin = await box.exec(["python3", "-c", "while True: pass"], timeout=600)
        assert spin.returncode == -9 and not spin.timed_out, "a program has no limit of its own, but is looked at"
        late = await box.exec("sleep 60 & sleep 60", timeout=0.2)
        assert late.timed_out and late.returncode == -9
        late = await box.exec_python("import time\ntry: time.sleep(60)\nexcept BaseException: pass", timeout=0.2)
        assert late.timed_out
        assert (await box.usage())["processes"] == 0
        await _alive(box)

    with_backend(body)


def test_output_flood_is_capped_and_ends(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        result = await box.exec("yes & yes >&2", timeout=30, max_output=1000)
        assert result.truncated and len(result.stdout) == 1000 and len(result.stderr) <= 1000
        assert result.returncode == -9 and not result.timed_out
        result = await box.exec("head -c 300000 /dev/zero; echo e >&2", max_output=1 << 20)
        assert len(result.stdout) == 300_000 and result.stderr == b"e\n" and not result.truncated

    with_backend(body)


def test_closed_descriptors_background_processes_and_odd_ends(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        assert (await box.exec("exec <&- >&- 2>&-; exit 3")).returncode == 3
        closer = "import os, time\nos.closerange(0, 99)\ntime.sleep(0.05)\nos._exit(4)"
        assert (await box.exec_python(closer)).returncode == 4
        result = await box.exec("sleep 30 & echo started")  # the background keeps the pipe open; no waiting for it
        assert result.stdout == b"started\n" and result.seconds < 20
        assert (await box.usage())["processes"] == 1
        assert (await box.exec("kill -9 $$")).returncode == -9
        assert (await box.exec("kill -9 -1; exit 1")).returncode in (-9, 1)
        assert (await box.exec_python("import os; os.abort()")).returncode == -6
        assert (await box.exec(["no-such-program"])).returncode == 127
        assert (await box.exec("true", cwd="/nowhere")).returncode == 127
        assert (await box.exec(["/etc/passwd"])).returncode == 126
        await _alive(box)

    with_backend(body)


def test_hostile_names_and_depths_are_answers_not_failures(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        source = """
import os
open(b"bad-\\xff\\n.txt", "w").write("odd")
for depth in range(25):
    os.mkdir(("d" if depth == 0 else "d" * 200))
    os.chdir(("d" if depth == 0 else "d" * 200))
"""
        await box.exec_python(source)
        files = await box.get(["*.txt"])
        assert files == {"bad-\udcff\n.txt": b"odd"}
        assert await box.read("bad-\udcff\n.txt") == b"odd"
        assert len(await box.list(recursive=True)) > 15
        with pytest.raises(OSError):
            await box.delete("d")
        with pytest.raises(OSError):
            await box.read("nul\0byte")
        with pytest.raises(OSError, match="larger than"):
            await box.get(["**"], max_bytes=1)
        with pytest.raises(FileNotFoundError):
            await box.read("missing")
        with pytest.raises(IsADirectoryError):
            await box.read("d")
        await _alive(box)

    with_backend(body)


def test_a_cancelled_command_is_ended(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.exec("sleep 60"), 0.3)
        for _ in range(100):
            if (await box.usage())["processes"] == 0:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the command still runs")

    with_backend(body)
