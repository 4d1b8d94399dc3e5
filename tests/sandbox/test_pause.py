"""A paused box does nothing, and goes on as if nothing had been. Real boxes of both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from woodshed.sandbox.protocol import BoxSpec, Paused, SandboxError

from .kinds import FIXTURES

COUNT = "i=0; while :; do i=$((i+1)); [ $((i % 1000)) = 0 ] && echo $i > n; done"
STATE = "cut -d' ' -f3 /proc/$(cat stopped)/stat"


def _ticks(helper: int) -> int:
    """Processor time that the processes below a backend's helper took so far, in clock ticks, as the machine counts."""
    parents, taken = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], taken[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = [helper]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return sum(taken.get(member, 0) for member in family[1:])


async def _written(box: Any, name: str) -> None:
    while name not in [found for found, _, _ in await box.list()]:
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", ["namespace", "gvisor"])
def test_a_paused_box_takes_no_processor_time(name: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(FIXTURES[name])(_take_no_time)


async def _take_no_time(backend: Any) -> None:
    box = await backend.create(BoxSpec())
    counting = asyncio.create_task(box.exec(COUNT, timeout=4))
    await box.exec("sleep 300 > /dev/null 2>&1 &")
    await _written(box, "n")
    sleeping = asyncio.create_task(box.exec("sleep 0.5; echo done", timeout=3))
    before = _ticks(backend.pid)
    while _ticks(backend.pid) < before + 20:  # it works
        await asyncio.sleep(0.05)
    await box.pause()
    await box.pause()
    for request in (
        box.exec("true"),
        box.exec_python("1"),
        box.read("n"),
        box.put({"x": b""}),
        box.usage(),
        box.snapshot(),
    ):
        with pytest.raises(Paused, match=rf"{box.id} is paused; resume\(\) it first"):
            await request
    assert box.stats()["paused"]
    before = _ticks(backend.pid)
    await asyncio.sleep(3.2)
    # gVisor's own timers take a little; what counts would take ten times as much.
    assert _ticks(backend.pid) <= before + 80, "it ran on while it was paused"
    await box.resume()
    assert (await sleeping).stdout == b"done\n", "the time of the pause is not the command's"
    assert (await counting).timed_out
    await box.resume()
    assert (await box.exec("pgrep -c sleep; echo alive")).stdout == b"1\nalive\n" and not box.stats()["paused"]
    await box.pause()
    await box.close()
    with pytest.raises(SandboxError, match="closed"):
        await box.resume()


def test_what_wakes_itself_is_ended_and_what_was_stopped_stays_so(with_backend: Callable[..., Any]) -> None:
    """A timer may send its own process the signal that continues it."""
    waking = """
import ctypes, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGCONT, lambda *_: None)
event = struct.pack("QiiI44x", 0, signal.SIGCONT, 0, 0)  # a signal, to this process
for n in range(20):  # a stop takes away what is under way of them, not all
    timer = ctypes.c_void_p()
    assert libc.timer_create(1, event, ctypes.byref(timer)) == 0
    first = 10_000_000 + n * 3_000_000
    assert libc.timer_settime(timer, 0, struct.pack("4q", 0, 50_000_000, 0, first), None) == 0
open("on", "w").close()
while True:
    pass
"""

    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        await box.exec("sleep 300 > /dev/null 2>&1 & kill -STOP $!; echo $! > stopped")
        while (await box.exec(STATE)).stdout != b"T\n":  # a signal waits until its process has its turn
            await asyncio.sleep(0.02)
        running = asyncio.create_task(box.exec_python(waking, timeout=600))
        await _written(box, "on")
        await box.pause()
        await asyncio.sleep(1.0)
        await box.resume()
        done = await running
        assert done.returncode == -9 and not done.timed_out, done
        assert (await box.exec(STATE)).stdout == b"T\n"

    with_backend(body)


def test_patience_with_a_box_begins_again_when_it_goes_on(with_backend: Callable[..., Any]) -> None:
    async def body(backend: Any) -> None:
        box = await backend.create(BoxSpec())
        waiting = asyncio.create_task(
            box.channel.request(
                {"op": "exec", "argv": ["sleep", "0.3"], "cwd": None, "env": {}, "timeout": 60.0, "max_output": 1},
                patience=2.0,
            )
        )
        await asyncio.sleep(0.1)
        await box.pause()
        await asyncio.sleep(2.5)
        await box.resume()
        assert (await waiting)[0]["returncode"] == 0

    with_backend(body)
