"""What makes boxes is short of descriptors or processes: a SandboxError while it lasts, and only that."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from typing import Any

import pytest
from waiting import until

from woodshed.sandbox.host.box_supervisor import descendants
from woodshed.sandbox.protocol import BoxSpec, SandboxError

from .ordinary import run_as_ordinary_user
from .processes import state

FEW_DESCRIPTORS = """
import asyncio, json, os, resource, sys
from pathlib import Path
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.host.box_supervisor import descendants
from woodshed.sandbox.protocol import BoxSpec, SandboxError

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]) / "state")
    living = await backend.create(BoxSpec(files={"a.txt": b"here"}))
    snapshot = await living.snapshot()
    pid = backend.pid
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir(f"/proc/{pid}/fd")))
    failed = 0
    for more in range(1, 60):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + more, usual[1]))
        boxes = []
        try:
            boxes.append(await backend.create(BoxSpec()))
            boxes += await backend.fork(snapshot)
        except SandboxError:
            failed += 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
        told = [(await box.exec("true")).returncode for box in boxes]
        for box in boxes:
            await box.close()
        if len(told) == 2:
            break
    (fork,) = await backend.fork(await living.snapshot())
    told += [failed, backend.pid == pid, (await living.read("a.txt")).decode(), (await fork.read("a.txt")).decode()]
    await backend.close()
    (Path(sys.argv[1]) / "state").rmdir()
    print(json.dumps(told))

asyncio.run(main())
"""
"""The helper process may open one more, two more ... until that is enough for a box and for a fork."""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs as a user whose processes may change each other's limits")
def test_a_helper_process_without_descriptors_makes_no_box_and_loses_none(_possible: None) -> None:
    *commands, failed, lives, kept, forked = json.loads(run_as_ordinary_user(FEW_DESCRIPTORS))
    assert commands == [0, 0] and failed >= 1 and lives and (kept, forked) == ("here", "here")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the rights to change the limits of gVisor's box supervisor")
def test_nor_does_that_of_gvisor(with_gvisor: Any) -> None:
    async def body(backend: Any) -> None:
        living = await backend.create(BoxSpec(files={"a.txt": b"here"}))
        box_supervisor = descendants(backend.pid)[-1]  # below the process that waits for its namespace
        usual = resource.prlimit(box_supervisor, resource.RLIMIT_NOFILE)
        highest = max(map(int, os.listdir(f"/proc/{box_supervisor}/fd")))
        for more in (1, 2, 3):
            resource.prlimit(box_supervisor, resource.RLIMIT_NOFILE, (highest + more, usual[1]))
            with pytest.raises(SandboxError):
                await backend.create(BoxSpec())
        resource.prlimit(box_supervisor, resource.RLIMIT_NOFILE, usual)
        box = await backend.create(BoxSpec())
        assert (await box.exec("true")).returncode == 0
        assert await living.read("a.txt") == b"here" and descendants(backend.pid)[-1] == box_supervisor

    with_gvisor(body)


FEW_PROCESSES = """
import asyncio, json, resource, sys
from pathlib import Path
from woodshed.sandbox.backends.namespace.backend import NamespaceBackend
from woodshed.sandbox.host.box_supervisor import descendants
from woodshed.sandbox.protocol import BoxSpec, SandboxError

async def main():
    backend = NamespaceBackend(Path(sys.argv[1]) / "state")
    living = await backend.create(BoxSpec())
    usual = resource.prlimit(backend.pid, resource.RLIMIT_NPROC)
    resource.prlimit(backend.pid, resource.RLIMIT_NPROC, (1, usual[1]))
    told = []
    for _ in range(2):
        try:
            await backend.create(BoxSpec())
            told.append("made")
        except SandboxError as error:
            told.append("Resource temporarily unavailable" in str(error))
    resource.prlimit(backend.pid, resource.RLIMIT_NPROC, usual)
    box = await backend.create(BoxSpec())
    told += [(await each.exec("true")).returncode for each in (living, box)]
    await backend.close()
    (Path(sys.argv[1]) / "state").rmdir()
    print(json.dumps(told))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="counts processes of a user who has no others")
def test_a_user_who_may_start_no_more_processes_is_told_so(_possible: None) -> None:
    assert json.loads(run_as_ordinary_user(FEW_PROCESSES)) == [True, True, 0, 0]


@pytest.mark.parametrize("rounds", [1, 2, 20, 100])
def test_a_helper_process_that_dies_with_boxes_under_way_leaves_errors_and_the_next_works(
    with_backend: Any, rounds: int
) -> None:
    """``rounds``: of the event loop until it is killed; meanwhile it makes some of the boxes."""

    async def body(backend: Any) -> None:
        await backend.create(BoxSpec())
        making = [asyncio.create_task(backend.create(BoxSpec())) for _ in range(8)]
        for _ in range(rounds):
            await asyncio.sleep(0 if rounds <= 2 else 0.001)
        victim = backend.pid
        os.kill(victim, 9)
        outcomes = await asyncio.gather(*making, return_exceptions=True)
        await until(lambda: state(victim) in ("", "Z"), "the end of the helper process")
        await asyncio.sleep(0.01)  # two rounds of the loop, in which it learns of that end
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, SandboxError)
            else:
                with pytest.raises(SandboxError):
                    await outcome.exec("true")
        assert (await (await backend.create(BoxSpec())).exec("true")).returncode == 0

    with_backend(body)
