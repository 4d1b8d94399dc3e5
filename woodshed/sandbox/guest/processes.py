"""Lists, measures, stops and ends the processes of a box; called by its first process."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from typing import NamedTuple

_PAGE, _TICKS = resource.getpagesize(), os.sysconf("SC_CLK_TCK")
_PSS = os.path.exists("/proc/self/smaps_rollup")


class Process(NamedTuple):
    """``state`` as in proc(5), ``resident`` in bytes, ``cpu`` in seconds."""

    pid: int
    state: str
    session: int
    resident: int
    cpu: float


def processes() -> list[Process]:
    """List every process of the box but its first: those of the pid namespace, or descendants of the first one."""
    found = []
    own = os.getpid()
    for name in filter(str.isdigit, os.listdir("/proc")) if own == 1 else _descendants(str(own)):
        if name == "1":
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            continue
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        found.append(Process(int(name), fields[0].decode(), int(fields[3]), int(fields[21]) * _PAGE, cpu))
    return found


def _descendants(pid: str) -> list[str]:
    """List descendants, deepest first. Orphans become children of the box's first process, which is a subreaper."""
    children: list[str] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children += file.read().split()
    return [name for child in children for name in (*_descendants(child), child)]


def memory(until: float = math.inf) -> int:
    """Return the bytes that the box's processes hold: proportional set size if the kernel has it, else resident.

    Processes that have not been read by ``until`` (monotonic clock) are left out: if hundreds of processes keep the
    processors busy, reading all of their sizes takes many seconds.
    """
    total = 0
    if not _PSS:
        return sum(process.resident for process in processes())
    for process in processes():
        if time.monotonic() >= until:
            break
        try:
            with open(f"/proc/{process.pid}/smaps_rollup", "rb", buffering=0) as file:
                for line in file.read(4096).splitlines():
                    if line.startswith(b"Pss:"):
                        total += int(line.split()[1]) << 10
                        break
        except OSError:
            continue
    return total


def kill_everything() -> None:
    """Signal every process of the box but its first, without waiting for their end."""
    _signal_all(signal.SIGKILL)


def kill_all() -> None:
    """End every process of the box but its first, also those that fork while they are being killed."""
    for _ in range(1000):
        kill_everything()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.001)


def stop() -> set[int]:
    """Stop every process of the box but its first, also those that fork meanwhile; return those already stopped before.

    Returns when no process runs any more, or after a second.
    """
    already = {process.pid for process in processes() if process.state == "T"}
    for _ in range(100):
        _signal_all(signal.SIGSTOP)
        if not any(process.state in "RS" for process in processes()):
            break
        time.sleep(0.01)
    return already


def go_on(already: set[int]) -> None:
    """Continue what ``stop`` stopped, except ``already``; youngest first, so that no parent finds a child stopped."""
    for process in sorted(processes(), reverse=True):
        if process.pid not in already:
            send(process.pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """Kill one process that may have ended already."""
    send(pid, signal.SIGKILL)


def _signal_all(number: int) -> None:
    if os.getpid() == 1:
        send(-1, number)
    else:  # without a pid namespace -1 would mean the host's processes
        for process in processes():
            send(process.pid, number)


def send(pid: int, number: int) -> None:
    """Signal a process that may have ended already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
