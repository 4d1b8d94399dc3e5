"""Features of the microvm backend only; skipped without QEMU (``scripts/install-qemu`` installs it)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from woodshed.sandbox.backends.microvm.backend import MicrovmBackend
from woodshed.sandbox.protocol import BoxSpec, SandboxError

from .processes import family, state

pytestmark = pytest.mark.long
Run = Callable[[Callable[[MicrovmBackend], Awaitable[Any]]], Any]


@pytest.fixture
def spec(specs: Callable[[str], BoxSpec]) -> BoxSpec:
    """That of the contract, so that one guest has to boot for all tests."""
    return specs("microvm")


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


def test_forks_have_the_time_of_day_and_randomness_of_their_own(with_microvm: Run, spec: BoxSpec) -> None:
    async def body(backend: MicrovmBackend) -> None:
        box = await backend.create(spec)
        snapshot = await box.snapshot("full")
        await box.exec("date -s '2001-01-01' 2> /dev/null")
        forks = await backend.fork(snapshot, 2)

        async def random_of(fork: Any) -> bytes:
            said = await fork.exec_python("import os, time; print(os.urandom(16).hex(), time.time())", timeout=600)
            random, now = said.stdout.split()
            assert abs(float(now) - time.time()) < 60
            return bytes(random)

        assert len({await random_of(each) for each in (box, *forks)}) == 3
        for each in (box, *forks):
            await each.close()

    with_microvm(body)


def test_too_many_layers_are_counted(with_microvm: Run, tmp_path: Path) -> None:
    async def body(backend: MicrovmBackend) -> None:
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


def test_nothing_is_left_when_the_owner_is_killed(_microvm: None, tmp_path: Path) -> None:
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
