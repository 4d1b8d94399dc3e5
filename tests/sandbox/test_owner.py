"""Nothing outlives its owner; an ordinary user can do all of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import run_to_end, until, wait_until

from woodshed.sandbox.host.spawner import Spawner, explain, owned_folder, sweep
from woodshed.sandbox.protocol import BoxSpec, SandboxError

from .ordinary import run_as_ordinary_user
from .processes import family, state

OWNER = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.protocol import BoxSpec

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]))
    boxes = [await backend.create(BoxSpec(files={"a": b"written"})) for _ in range(4)]
    await boxes[0].exec("setsid sleep 321 & echo")
    snapshot = await boxes[1].snapshot()
    [fork] = await backend.fork(snapshot)
    assert await fork.read("a") == b"written"
    assert (await fork.exec_python("import os; print(os.getuid())")).stdout == b"1000\\n"
    assert (await fork.exec("id -u; cat a")).stdout == b"1000\\nwritten"
    print(backend.pid, backend.privileged, flush=True)
    if sys.argv[2] == "wait":
        await asyncio.sleep(60)
    await backend.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("victim", ["owner", "fork_server"])
def test_kill_9_leaves_nothing(_possible, tmp_path, victim):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), "wait"], stdout=subprocess.PIPE, text=True)
    fork_server = int(owner.stdout.readline().split()[0])
    processes = family(fork_server)
    assert len(processes) >= 7  # the fork server, five boxes, a background process
    os.kill(fork_server if victim == "fork_server" else owner.pid, signal.SIGKILL)
    wait_until(lambda: all(state(pid) in ("", "Z") for pid in processes), "the boxes to end")
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_spares_the_living(tmp_path):
    start = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    here = os.stat("/proc/self/ns/pid").st_ino
    alive = tmp_path / f"woodshed-boxes-{os.getpid()}-{start}-{here}-x"
    reused = tmp_path / f"woodshed-boxes-{os.getpid()}-1-{here}-x"
    for folder in (alive, reused, tmp_path / f"woodshed-boxes-4194399-5-{here}-x", tmp_path / "other"):
        folder.mkdir()
    sweep(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {alive.name, "other"}


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare")
def test_a_sweep_in_a_container_spares_those_outside(_possible, tmp_path):
    mine = owned_folder(tmp_path)
    program = (
        "import os, sys, pathlib\nfrom woodshed.sandbox.host.spawner import owned_folder\n"
        "print(os.getpid(), owned_folder(pathlib.Path(sys.argv[1])))"
    )
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*apart, sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    number, theirs = done.stdout.split()
    assert int(number) < 10, "it has a pid namespace of its own"
    assert mine.is_dir() and Path(theirs).is_dir()
    sweep(tmp_path)
    assert mine.is_dir() and Path(theirs).is_dir(), "whether that one lives cannot be told from here"


def test_an_ordinary_user_can_do_it_too(_possible):
    assert run_as_ordinary_user(OWNER, "end").split()[1] == "False", "not privileged"


DIES = """
import os, signal
from woodshed.sandbox.backends.namespace.users import _namespace

for microseconds in range(2000, 5000, 20):
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
        while True:
            os.close(_namespace(65534, 2_000_200_001))
    os.waitpid(pid, 0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="maps a user that is not its own")
def test_a_process_that_dies_while_it_makes_a_host_user_leaves_none_that_holds_its_descriptors(_possible):
    """Killed at 150 moments; the command ends when nobody holds its standard output any more."""
    done = run_to_end([sys.executable, "-c", DIES], patience=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dies_at", ["start", "create", "kill", "release"])
def test_every_wait_on_a_helper_process_ends_with_it_whoever_holds_its_socket(tmp_path, dies_at):
    living, lost = tmp_path / "living", []
    living.touch()

    async def body(spawner):
        await spawner.start()
        a, b = os.pipe()
        number = await spawner.create({}, a, b)
        os.close(a)
        os.close(b)
        if dies_at == "release":
            await spawner.ask("release", name="s1")
        await spawner.kill(number)
        spawner.confirm(number)

    async def main():
        config = {"dies_at": dies_at, "living": str(living)}
        program = "tests.sandbox.lingering"
        spawner = Spawner(tmp_path / "state", lambda: lost.append(1), program=program, config=config)
        waiting = asyncio.create_task(body(spawner))
        try:
            await until(waiting.done, "an error", patience=60)
            with pytest.raises(SandboxError, match="helper process"):
                await waiting
            assert lost, "it is told while the child still lives"
        finally:
            living.unlink()
            await spawner.close()

    asyncio.run(main())


def test_missing_user_namespaces_are_explained():
    text = explain("[Errno 1] unshare: Operation not permitted", 1, "namespace")
    assert "sysctl user.max_user_namespaces" in text and "apparmor_restrict_unprivileged_userns" in text
    assert len(text.splitlines()) < 12
    assert "sysctl" not in explain("[Errno 2] mount: nothing there", 2, "gvisor")


def test_a_backend_outlives_its_fork_server(with_backend):
    async def body(backend):
        box = await backend.create(BoxSpec(files={"a": b"written"}))
        other = await backend.create(BoxSpec())
        snapshot = await box.snapshot()
        first = backend.pid
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await other.exec("sleep 60")
        with pytest.raises(SandboxError):
            await backend.fork(snapshot)
        await box.close()
        fresh = await backend.create(BoxSpec(files={"a": b"again"}))
        assert (await fresh.exec("cat a")).stdout == b"again" and backend.pid != first
        [fork] = await backend.fork(await fresh.snapshot())
        assert await fork.read("a") == b"again"
        await other.close()

    with_backend(body)


def test_a_fork_server_that_dies_while_it_starts_is_started_again(with_backend):
    async def body(backend):
        first = asyncio.create_task(backend.create(BoxSpec()))
        while backend.pid is None:
            await asyncio.sleep(0)
        os.kill(backend.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await first
        box = await backend.create(BoxSpec(files={"a": b"written"}))
        assert await box.read("a") == b"written"

    with_backend(body)
