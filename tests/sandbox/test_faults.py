"""What a box does to itself counts against the box, and what this machine lacks never does."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal

import pytest
from limits import soft_limit

from woodshed.record.fault import Fault
from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest import files as boxfiles
from woodshed.sandbox.guest.frames import encode
from woodshed.sandbox.protocol import BoxError, BoxGone, BoxSpec, SandboxError
from woodshed.sandbox.remote import wire
from woodshed.sandbox.remote.leases import Lease

STOPPER = """
import os, signal
if os.fork(): os._exit(0)
os.setsid()
while True:
    try: os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError: pass
"""
DEEP = """
import os
for _ in range(1900):
    os.mkdir("d"); os.chdir("d")
for n in range(2000): os.mkdir("x%d" % n)
"""


def test_a_loop_that_stops_everything_stops_no_first_process(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        await box.exec(["python3", "-c", STOPPER], timeout=20)
        for _ in range(4):
            done = await box.exec(["true"], timeout=0.5)
            assert done.timed_out or done.returncode == 0
        await box.put({"a.py": b"1"})
        assert await box.get(["*.py"]) == {"a.py": b"1"}

    with_backend(body)


def test_what_a_box_answers_and_its_end_are_of_the_box(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        with pytest.raises(FileNotFoundError) as missing:
            await box.read("none")
        assert isinstance(missing.value, BoxError) and missing.value.source == "box"
        with pytest.raises(BoxGone):  # a silent first process
            os.kill(_first_process(backend.pid), signal.SIGSTOP)
            await box._ask({"op": "stats"}, patience=0.5)
        other = await backend.create(BoxSpec())
        os.kill(backend.pid, signal.SIGKILL)
        with pytest.raises(SandboxError) as lost:
            while True:  # until its end has reached the box
                with contextlib.suppress(FileNotFoundError):
                    await other.read("none")
        assert lost.value.source == "host" and not isinstance(lost.value, OSError)

    with_backend(body)


def _first_process(fork_server):
    with open(f"/proc/{fork_server}/task/{fork_server}/children") as file:
        return int(file.read().split()[-1])


def test_deep_trees_are_read_and_removed_in_bounded_work(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec())
        await box.put({"a.py": b"1"})
        done = await box.exec(["python3", "-c", DEEP], timeout=60)
        assert done.returncode == 0, done.stderr
        assert await box.get(["**/*.py"]) == {"a.py": b"1"}

    with_backend(body)


def test_too_many_entries_are_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(boxfiles, "_MAX_ENTRIES", 20)
    for n in range(30):
        (tmp_path / f"d{n}").mkdir()
    for read in (lambda: boxfiles.collect(str(tmp_path), ["**"], 1), lambda: boxfiles.listing(str(tmp_path), True, 99)):
        with pytest.raises(OSError) as error:
            read()
        assert error.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    "error", [box_error(errno.ENOENT, "x", "p"), BoxGone(errno.ETIMEDOUT, "x"), SandboxError("x"), OSError(24, "x")]
)
def test_another_host_keeps_the_source(error):
    again = wire.failure(wire.encode_error(error))
    assert isinstance(again, Fault)
    assert again.source == getattr(error, "source", "host") and isinstance(again, BoxGone) == isinstance(error, BoxGone)


def test_a_file_is_not_left_out_for_want_of_a_descriptor(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.py", "deep/b.py"):
        (tmp_path / name).write_bytes(b"1")
    os.symlink("a.py", tmp_path / "link.py")
    assert dict(boxfiles.collect(str(tmp_path), ["**/*.py"], 99)) == {"a.py": b"1", "deep/b.py": b"1"}
    held, errors = [], []
    with soft_limit(resource.RLIMIT_NOFILE, 9 + max(map(int, os.listdir("/proc/self/fd")))):
        with pytest.raises(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        while held:  # one more descriptor each time, until they are enough
            os.close(held.pop())
            try:
                found = dict(boxfiles.collect(str(tmp_path), ["**/*.py"], 99))
            except OSError as error:
                errors.append(error.errno)
            else:
                assert found == {"a.py": b"1", "deep/b.py": b"1"}
                break
    for fd in held:
        os.close(fd)
    assert errors and set(errors) == {errno.EMFILE}


def test_lines_of_egress_are_told_in_parts():
    lease = Lease("client")
    for number in range(1, 1203):
        lease.note(number, {"host": "é" * 500})
    have, told = 0, []
    while lines := lease.lines(have):
        encode({"egress": lines})
        told += [number for number, _ in lines]
        have = told[-1]
    assert told == list(range(1, 1203))
