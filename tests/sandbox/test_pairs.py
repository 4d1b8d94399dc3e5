"""Two boxes: one takes all it can of what the kernel counts for their host user, the other notices nothing."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest

from woodshed.sandbox.host.pressure import Bounds, Load
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import BoxSpec, Egress

from .ordinary import run_as_ordinary_user

IN_FLIGHT = """
import array, os, resource, socket, time
file, waiting, refused = os.open("/dev/null", os.O_RDONLY), [], 0
while not refused and len(waiting) < 400:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    waiting += [ours, theirs]
    try:
        for _ in range(8):
            ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file] * 250))])
    except OSError as error:
        refused = error.errno
open("full", "w").write(str(refused))
time.sleep(600)
"""
"""Descriptors sent in messages that nobody reads, until the kernel refuses more."""

ORDINARY = f"""
import asyncio, json, resource, sys
from pathlib import Path
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.protocol import BoxSpec, Egress
ATTACK = {IN_FLIGHT!r}
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]) / "state")
    attacker, living = await backend.create(BoxSpec()), await backend.create(BoxSpec())
    attack = asyncio.create_task(attacker.exec_python(ATTACK, timeout=120))
    while not [1 for name, _, _ in await attacker.list() if name == "full"]:
        await asyncio.sleep(0.05)
    told = [int(await attacker.read("full"))]
    for _ in range(3):
        await living.write("a.txt", b"here")
        snapshot = await living.snapshot()
        box, = await backend.fork(snapshot)
        told.append((await box.exec("cat a.txt")).stdout.decode())
        other = await backend.create(BoxSpec(egress=Egress(allow=("index.example",))))
        told.append((await other.exec("echo made")).stdout.decode().strip())
        await box.close()
        await other.close()
        await backend.drop(snapshot)
    told += [attack.done(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]
    attack.cancel()
    await backend.close()
    (Path(sys.argv[1]) / "state").rmdir()
    print(json.dumps(told))

asyncio.run(main())
"""


def test_descriptors_that_wait_in_a_box_keep_no_other_from_anything(with_backend: Any) -> None:
    async def body(backend: Any) -> None:
        pool = Pool(backend, lambda: Load(1 << 40, 1 << 40), Bounds())
        attacker = await pool.create(BoxSpec())
        attack = asyncio.create_task(attacker.exec_python(IN_FLIGHT, timeout=120))
        while not [1 for name, _, _ in await attacker.list() if name == "full"]:
            await asyncio.sleep(0.05)
        assert int(await attacker.read("full")) == 109  # ETOOMANYREFS: the attack took all that there was
        heavy = BoxSpec(files={f"data/{n}": os.urandom(1 << 16) for n in range(4)})
        for _ in range(3):
            box = await pool.create(heavy)
            assert (await box.exec("ls data | wc -l")).stdout == b"4\n"
            (fork,) = await pool.fork(await box.snapshot())
            assert (await fork.exec("ls data | wc -l")).stdout == b"4\n"
            await fork.close()
            await box.close()
        assert pool.stats()["bases_used"] > 0
        reaching = await pool.create(BoxSpec(egress=Egress(allow=("index.example",))))
        assert (await reaching.exec("true")).returncode == 0
        assert not attack.done()
        attack.cancel()
        await pool.close()

    with_backend(body)


@pytest.mark.skipif(os.geteuid() != 0, reason="the other test runs as an ordinary user already")
def test_nor_where_an_ordinary_user_has_the_boxes(_possible: None) -> None:
    told = json.loads(run_as_ordinary_user(ORDINARY))
    assert told == [109, *["here", "made"] * 3, False, 1024]


def test_no_box_may_raise_its_own_priority(with_backend: Any) -> None:
    """A host that allows its users real-time scheduling or negative nice values keeps both from boxes; here that takes
    such a host to fail."""

    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        ask = "import resource as r; print(*r.getrlimit(r.RLIMIT_RTPRIO), *r.getrlimit(r.RLIMIT_NICE))"
        assert (await box.exec_python(ask)).stdout.split() == [b"0"] * 4

    with_backend(body)
