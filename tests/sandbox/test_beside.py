"""Boxes put against each other: what one takes or does, another does not notice; and the attempts are shown to bite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodshed.attacks.escapes.beside import BACKENDS, Beside, beside_backend, program, sources
from woodshed.attacks.escapes.pairs import PAIRS
from woodshed.attacks.escapes.pairs.base import STOP, TAKEN
from woodshed.sandbox import open_backend
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.backends.namespace.hostparts import mounted_below
from woodshed.sandbox.guest.processes import Process
from woodshed.sandbox.guest.turns import Turns, shared_by_session
from woodshed.sandbox.protocol import BoxSpec, SandboxError

from .ordinary import run_as_ordinary_user

_ORDINARY = """
import json, sys
from pathlib import Path
from typing import Any
from woodshed.attacks.escapes.beside import beside_backend
print(json.dumps([vars(each) for each in beside_backend(sys.argv[2], Path(sys.argv[1]))]))
"""
SHARED_BY_ALL = {"descriptor_locks"}
SHARED_BY_ONE_USER = {"descriptors_in_flight", "pipe_buffers", "large_pipes", "device_locks", "watched_devices"}
"""What docs/sandboxes.md says is not kept apart: on namespace boxes at all, and where they have one host user."""


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.long) if each == "gvisor" else each for each in BACKENDS])
def name(request: pytest.FixtureRequest) -> str:
    try:
        if not (probe := open_backend(request.param).probe()).ok:
            pytest.skip("; ".join(probe.reasons))
    except SandboxError as error:
        pytest.skip(str(error))
    return str(request.param)


def test_a_box_notices_nothing_of_another(name: str) -> None:
    own_users = os.geteuid() == 0
    check(beside_backend(name), SHARED_BY_ALL if own_users else SHARED_BY_ALL | SHARED_BY_ONE_USER, name)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other test runs as an ordinary user already")
def test_nor_where_an_ordinary_user_has_the_boxes(name: str) -> None:
    said = json.loads(run_as_ordinary_user(_ORDINARY, name))
    check([Beside(**row) for row in said], SHARED_BY_ALL | SHARED_BY_ONE_USER, name)


def check(tried: list[Beside], shared: set[str], name: str) -> None:
    assert {each.name for each in tried} == {*PAIRS, "processor"} and len(tried) >= 25
    noticed = {each.name: each.evidence for each in tried if each.evidence}
    assert [each for each in tried if each.disturbed] == []
    if name == "gvisor":
        shared = set() if shared_by_session() else {"processor"}
    assert noticed.keys() <= shared
    broken = ("KeyError", "NameError", "TypeError", "AttributeError", "ValueError", "ImportError", "nothing")
    assert [each for each in tried if each.got.startswith(broken)] == []


@pytest.mark.parametrize("attempt", ["program_locks", "device_locks", "proc_locks", "names", "process_names"])
def test_the_attempts_work_where_nothing_stops_them(attempt: str, tmp_path: Path) -> None:
    """Run on the machine itself, in no box: one process notices the other."""
    for side in ("one", "other"):
        for path, data in sources().items():
            (tmp_path / side / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / path).write_bytes(data)

    def use() -> str:
        command = [sys.executable, "-I", "-c", program("use", attempt)]
        done = subprocess.run(command, cwd=tmp_path / "other", capture_output=True, text=True, timeout=60, check=True)
        return str(json.loads(done.stdout.splitlines()[-1])["said"])

    alone = use()
    command = [sys.executable, "-I", "-c", program("take", attempt)]
    taking = subprocess.Popen(command, cwd=tmp_path / "one", start_new_session=True)
    try:
        while not (tmp_path / "one" / TAKEN).exists():
            assert taking.poll() is None
        assert use() != alone
    finally:
        (tmp_path / "one" / STOP).touch()
        assert taking.wait(60) == 0
        with contextlib.suppress(ProcessLookupError):  # process_names leaves one, which the next use would see
            os.killpg(taking.pid, signal.SIGKILL)
        for place in ("/dev/shm", "/tmp", "/var/tmp"):
            Path(f"{place}/woodshed-pair").unlink(missing_ok=True)


BUSY = """
import os, time
for number in range(8):
    if os.fork() == 0:
        os.setsid()
        while time.process_time() < 0.5: pass
        os._exit(number)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(8)))
"""


def test_processes_that_take_turns_come_to_their_end(_possible: None, tmp_path: Path) -> None:
    """Without control groups, beside another busy box, and with a pause meanwhile."""

    async def body() -> None:
        backend = NamespaceBackend(tmp_path / "state", cgroups=False)
        try:
            box, other = await backend.create(BoxSpec()), await backend.create(BoxSpec())
            tasks = [asyncio.create_task(each.exec_python(BUSY, timeout=120)) for each in (box, other)]
            while (await box.usage())["processes"] < 9 and not tasks[0].done():
                await asyncio.sleep(0.02)
            await box.pause()
            await box.resume()
            for task in tasks:
                done = await task
                assert (done.stdout, done.stderr) == (b"[0, 1, 2, 3, 4, 5, 6, 7]\n", b"")
        finally:
            await backend.close()

    asyncio.run(body())


def test_turns() -> None:
    signals: list[tuple[int, str]] = []
    turns = Turns(2, by_session=True, send=lambda pid, number: signals.append((pid, number.name)))  # type: ignore[attr-defined]

    def look(*states: str, others: int = 1, cpu: float = 0.0) -> dict[int, str]:
        signals.clear()
        turns.look([Process(10 + n, state, n, 0, cpu) for n, state in enumerate(states)], others)
        return dict(signals)

    assert look("R", "R", "S") == {}  # as many as may
    assert look("R", "R", "R", "R", others=0) == {}  # nobody else wants to run
    assert look("R", "R", "R", "R") == {12: "SIGSTOP", 13: "SIGSTOP"}
    assert look("R", "R", "T", "T") == {10: "SIGSTOP", 11: "SIGSTOP", 12: "SIGCONT", 13: "SIGCONT"}
    assert look("R", "T", "R", "R", cpu=0.05) == {10: "SIGCONT", 11: "SIGCONT", 12: "SIGSTOP", 13: "SIGSTOP"}
    assert look("R", "R", "R", "T", cpu=0.5)[12] == "SIGKILL"  # somebody continued it
    assert look("R", "T", "S", "T") == {11: "SIGCONT"}  # few enough again: all that this stopped goes on
    assert look("R", "S", "S", "T") == {}  # what stopped of itself is not continued


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users to give")
def test_every_box_of_root_has_a_host_user_of_its_own(with_backend: Any) -> None:
    async def user(box: Any) -> int:
        inside, outside, count = map(int, (await box.exec("cat /proc/self/uid_map")).stdout.split())
        assert (inside, count) == (1000, 1) and (await box.exec("id -u")).stdout == b"1000\n"
        return outside

    async def body(backend: Any) -> None:
        first = await backend.create(BoxSpec(files={"a.txt": b"of the first"}))
        await first.exec("mkdir d && echo x > d/x && mkdir /opt/made")
        snapshot = await first.snapshot()
        forks = await backend.fork(snapshot, 3)
        users = [await user(box) for box in (first, *forks)]
        assert backend.users and len({*users}) == 4 and min(users) > 2_000_000_000
        for fork in forks:  # what the first wrote belongs to them, and to each alone
            changed = await fork.exec("echo more >> a.txt && rm -r d && rmdir /opt/made && touch /opt/own && cat a.txt")
            assert (changed.returncode, changed.stdout) == (0, b"of the firstmore\n")
        assert await first.read("a.txt") == b"of the first" and await first.read("d/x") == b"x\n"
        (last,) = await backend.fork(await forks[0].snapshot())  # a snapshot above that of another user
        assert (await last.exec("rm a.txt && ls -A . /opt")).stdout == b".:\n\n/opt:\nown\n"
        for box in (*forks, last):
            await box.close()
        again = [await user(await backend.create(BoxSpec())) for _ in range(3)]
        assert {*again} & {*users[1:]}  # of boxes that have ended

    with_backend(body)


def test_what_is_mounted_below_a_folder_is_found(tmp_path: Path) -> None:
    for name in ("usr/local", "usr/a b", "usr2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr/file").touch()
    places = ["usr", "usr/local", "usr/a\\040b", "usr/file", "usr2", "usr/gone"]
    lines = [f"{30 + n} 1 0:{n} / {tmp_path}/{place} rw - ext4 /dev/x rw\n" for n, place in enumerate(places)]
    (tmp_path / "mountinfo").write_text("".join(lines))
    found = mounted_below(f"{tmp_path}/usr", str(tmp_path / "mountinfo"))
    assert found == [f"{tmp_path}/usr/a b", f"{tmp_path}/usr/local"]
