"""Processes of a box take turns where no control group gives each box its share of the processors.

The kernel shares processors between sessions (``sched_autogroup_enabled``), or else between processes: a box with a
hundred of them would get a hundred times what another gets. So a box in which more of them want to run than there are
processors, while others want to run as well, has all but so many stopped, others at every look.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from .processes import Process

_OUT_OF_TURN = 0.1
"""Seconds of processor: more than what a process gets before a signal arrives."""


class Turns:
    """``send`` signals a process that may have ended. ``by_session``: what the kernel shares processors between."""

    def __init__(self, most: int, *, by_session: bool, send: Callable[[int, int], None]) -> None:
        self._most, self._by_session, self._send = most, by_session, send
        self._stopped: dict[int, float] = {}  # pid -> seconds of processor that it had had
        self._next = 0

    def look(self, running: list[Process], others: int) -> None:
        """``running``: the box's processes, ``others``: how many on this machine want to run besides them."""
        self._end_those_that_do_not_wait(running)
        wanting = sorted({self._unit(p) for p in running if p.state == "R" or p.pid in self._stopped})
        if others < 1 or len(wanting) <= self._most:
            self.release()
            return
        start = self._next % len(wanting)
        turn = set((wanting + wanting)[start : start + self._most])
        self._next = start + self._most
        for process in running:
            unit = self._unit(process)
            if unit in turn and process.pid in self._stopped:
                del self._stopped[process.pid]
                self._send(process.pid, signal.SIGCONT)
            elif unit in wanting and unit not in turn and process.state in "RSD" and process.pid not in self._stopped:
                self._stopped[process.pid] = process.cpu
                self._send(process.pid, signal.SIGSTOP)

    def release(self) -> None:
        """All that this stopped goes on."""
        for pid in self._stopped:
            self._send(pid, signal.SIGCONT)
        self._stopped.clear()

    def _end_those_that_do_not_wait(self, running: list[Process]) -> None:
        """A process of the box may continue another; one that ran out of turn is ended.

        One that the kernel has not run since has not seen its signal either, so what it has had decides.
        """
        living = {process.pid: process for process in running}
        for pid, cpu in list(self._stopped.items()):
            if pid not in living:
                del self._stopped[pid]
            elif living[pid].cpu - cpu > _OUT_OF_TURN:
                del self._stopped[pid]
                self._send(pid, signal.SIGKILL)

    def _unit(self, process: Process) -> int:
        return process.session if self._by_session else process.pid


def make_turns(send: Callable[[int, int], None]) -> Turns:
    """For this machine."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            by_session = file.read().strip() == "1"
    except OSError:
        by_session = False
    return Turns(max(2, os.cpu_count() or 1), by_session=by_session, send=send)


def wanting_to_run() -> int:
    """Processes of the machine that run or want to, this one among them."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[0])
