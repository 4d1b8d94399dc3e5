"""The pool on real boxes: who is let in, what is warm, and what a killed owner leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from woodshed.sandbox.guest.cgroups import find_place
from woodshed.sandbox.host.bases import Bases
from woodshed.sandbox.host.pressure import Bounds, Load, measure
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.protocol import BoxSpec, Limits, SandboxError, Unsupported

PLENTY = Load(64 << 30, 64 << 30, 0.0, 0.0)
HEAVY = BoxSpec(files={f"pkg/m{n}.py": b"value = 1\n" * 200 for n in range(100)})
LIGHT = BoxSpec(files={"a.py": b"print(1)\n"})


def test_boxes_wait_for_room_and_one_is_always_let_in(with_backend: Callable[..., Any]) -> None:
    now = [replace(PLENTY, memory=1 << 20)]

    async def body(backend: Any) -> None:
        pool = Pool(backend, lambda: now[0], Bounds(memory=1 << 30), max_boxes=3)
        first = await pool.create(LIGHT)
        waiting = [asyncio.create_task(pool.create(LIGHT)) for _ in range(3)]
        await asyncio.sleep(0.6)
        assert not any(task.done() for task in waiting), "the machine is short of memory"
        now[0] = PLENTY
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            more, rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        await asyncio.sleep(0.2)
        assert len(rest) == 1 and not next(iter(rest)).done(), "three boxes live"
        await first.close()
        await first.close()
        last = await next(iter(rest))
        assert (await last.exec("python3 a.py")).stdout == b"1\n"
        stats = pool.stats()
        assert stats["living"] == 3 and stats["waited"] == 3 and stats["wait_seconds"] > 1
        with pytest.raises(Unsupported, match="4 forks at once"):
            await pool.fork(await last.snapshot(), 4)
        for task in done:
            await task.result().close()
        forks = await pool.fork(await last.snapshot(), 2)
        assert pool.stats()["living"] == 3 and (await forks[1].exec("python3 a.py")).stdout == b"1\n"
        with pytest.raises(SandboxError, match="No such file"):
            await forks[0].close() or await pool.create(BoxSpec(layers=(Path("/nonexistent/layer"),)))
        assert pool.stats()["living"] == 2, "what could not be made holds no place"

    with_backend(body)


def test_waiting_has_an_end_that_says_what_is_short(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        pool = Pool(backend, lambda: replace(PLENTY, memory_stall=55.0), Bounds(), patience=0.5)
        box = await pool.create(LIGHT)
        for making in (pool.create(LIGHT), pool.create(LIGHT)):
            with pytest.raises(SandboxError, match=r"no room for another box in 0 s: work waits for memory 55%"):
                await making
        cancelled = asyncio.create_task(pool.create(LIGHT))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await box.close()
        await (await pool.create(LIGHT)).close()
        assert pool.stats()["living"] == 0

    with_backend(body)


def test_heavy_boxes_fork_from_a_base_and_differ_in_nothing(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        pool = Pool(backend, lambda: PLENTY, Bounds(), bases=2)
        for _ in range(3):
            await pool.create(LIGHT)
        assert pool.stats()["bases_made"] == 0, "a light box is no dearer than a fork"
        group = await asyncio.gather(*(pool.create(HEAVY) for _ in range(6)))
        assert pool.stats()["bases_made"] == 1 and pool.stats()["bases_used"] == 5
        await group[1].write("pkg/m1.py", b"changed")
        files = [await box.get(["**/*"]) for box in group]
        assert await group[2].read("pkg/m1.py") == HEAVY.files["pkg/m1.py"]
        assert len({str(sorted({**each, "pkg/m1.py": b""}.items())) for each in files}) == 1
        other = replace(HEAVY, limits=Limits(processes=7), env={"NAME": "x"})
        boxes = [await pool.create(other) for _ in range(2)]
        ask = "import os, resource; print(os.environ['NAME'], resource.getrlimit(resource.RLIMIT_NPROC)[0])"
        assert [(await box.exec_python(ask)).stdout for box in boxes] == [b"x 8\n"] * 2
        third = replace(HEAVY, env={"NAME": "y"})
        for _ in range(2):
            await pool.create(third)
        assert pool.stats()["bases"] == 2 and pool.stats()["bases_evicted"] == 1
        assert await group[3].read("pkg/m7.py") == HEAVY.files["pkg/m7.py"], "boxes outlive their base"
        os.kill(backend.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await group[0].exec("sleep 5")
        for box in (*group, *boxes):
            await box.close()
        again = await pool.create(third)
        assert await again.read("pkg/m7.py") == third.files["pkg/m7.py"]

    with_backend(body)


def test_boxes_with_different_roots_share_no_base() -> None:
    async def never(_: Any) -> Any:
        raise AssertionError

    bases = Bases(never, never, most=8, most_bytes=1 << 30)
    for spec in (HEAVY, replace(HEAVY, root=Path("/a")), replace(HEAVY, root=Path("/b")), replace(HEAVY, image="i")):
        assert bases.key(spec) is None and bases.key(spec) is not None


def test_bases_make_room_when_memory_is_short(with_backend: Callable[..., Any]) -> None:
    now = [PLENTY]

    async def body(backend: Any) -> None:
        pool = Pool(backend, lambda: now[0], Bounds())
        for _ in range(2):
            await pool.create(HEAVY)
        assert pool.stats()["bases"] == 1
        now[0] = replace(PLENTY, memory=0)
        await asyncio.sleep(0.3)
        waiting = asyncio.create_task(pool.create(LIGHT))
        while pool.stats()["bases"]:
            await asyncio.sleep(0.05)
        now[0] = PLENTY
        await waiting

    with_backend(body)


def test_the_machine_is_measured(tmp_path: Path) -> None:
    load = measure(tmp_path / "not" / "there" / "yet")
    assert load.memory > 1 << 20 and load.disk > 1 << 20
    assert (load.memory_stall is None) is not Path("/proc/pressure/memory").exists()
    (tmp_path / "pressure").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:  512 kB\n")
    line = "avg10={} avg60=0.00 avg300=0.00 total=1\n"
    for name, some, full in (("memory", 40.5, 30.25), ("cpu", 91.5, 0)):
        (tmp_path / "pressure" / name).write_text("some " + line.format(some) + "full " + line.format(full))
    load = measure(tmp_path, tmp_path)
    assert (load.memory, load.memory_stall, load.cpu_stall) == (512 << 10, 30.25, 91.5)
    assert Bounds().problem(load).startswith("0 MiB of memory available, sandbox.keep_memory is 1024 MiB")
    assert Bounds(memory=None).problem(load).startswith("work waits for memory 30% of the time, sandbox.memory_stall")
    assert "sandbox.cpu_stall" in Bounds(memory=None, memory_stall=None, cpu_stall=90.0).problem(load)
    assert "sandbox.keep_disk" in Bounds(memory=None, disk=1 << 60).problem(load)
    assert Bounds(None, None, None, None).problem(load) == ""


OWNER = """
import asyncio, sys
from pathlib import Path
from woodshed.sandbox import open_backend
from woodshed.sandbox.pool import Pool
from woodshed.sandbox.host.pressure import Bounds, measure
from woodshed.sandbox.protocol import BoxSpec

async def main():
    root = Path(sys.argv[2])
    pool = Pool(open_backend(sys.argv[1], root=root), lambda: measure(root), Bounds(None, None, None))
    spec = BoxSpec(files={f"m{n}": bytes(2000) for n in range(100)})
    for _ in range(2):
        box = await pool.create(spec)
    await box.exec("sleep 1000 > /dev/null 2>&1 &")
    await box.pause()
    if sys.argv[3] == "wait":
        print(pool.stats()["bases"], flush=True)
        await asyncio.sleep(1000)
    await pool.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["namespace", "gvisor"])
def test_nothing_of_a_killed_pool_is_left_after_the_next_start(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """Neither process nor mount nor folder nor control group, with a base, a paused box and a process in it."""
    request.getfixturevalue("_possible" if name == "namespace" else "_gvisor")
    command = [sys.executable, "-c", OWNER, name, str(tmp_path)]
    owner = subprocess.Popen([*command, "wait"], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "1\n"
        family = _family(owner.pid)
        assert len(family) >= 4
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
    subprocess.run([*command, "end"], check=True)
    wait_until(lambda: not any(map(_alive, family)), "the boxes to end with their owner")
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    place = find_place()
    for folder in place.folders if place is not None else ():
        assert not [entry for entry in os.listdir(folder) if entry.startswith(f"woodshed-boxes-{owner.pid}-")]


def _family(pid: int) -> list[int]:
    """Processes below ``pid``, itself included."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    family = [pid]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"
