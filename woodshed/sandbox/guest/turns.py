"""Lets the processes of a box take turns if no control group gives each box its share of the processors.

The kernel shares processors between sessions (``sched_autogroup_enabled``) or else between processes, so a box with a
hundred of them would get a hundred times as much as another. If more of a box's processes (or sessions) want to run
than there are processors, and other boxes want to run as well, the surplus is stopped: other ones at every look.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from .processes import Process

_OUT_OF_TURN = 0.1
"""Processor seconds; more than what a process gets before a signal arrives."""


class Turns:
    """Stops and continues processes so that at most ``most`` run. ``send`` signals a process that may have ended.

    ``by_session``: True if the kernel shares processors between sessions, False if between processes.
    """

    def __init__(self, most: int, *, by_session: bool, send: Callable[[int, int], None]) -> None:
        self._most, self._by_session, self._send = most, by_session, send
        self._stopped: dict[int, float] = {}  # pid -> processor seconds when it was stopped
        self._next = 0

    def look(self, running: list[Process], others: int) -> None:
        """Choose who runs next. ``running``: processes of the box; ``others``: number of others that want to run."""
        self._kill_out_of_turn(running)
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
        """Continue all that this has stopped."""
        for pid in self._stopped:
            self._send(pid, signal.SIGCONT)
        self._stopped.clear()

    def _kill_out_of_turn(self, running: list[Process]) -> None:
        """End processes that ran out of turn: one process of the box may have continued another.

        Judged by processor time, because a process has not seen its signal before the kernel runs it again.
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


def shared_by_session() -> bool:
    """Return True if this kernel gives every session an equal share of the processors, False if every process."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            return file.read().strip() == "1"
    except OSError:
        return False


def make_turns(send: Callable[[int, int], None]) -> Turns:
    """Make ``Turns`` for this machine."""
    return Turns(max(2, os.cpu_count() or 1), by_session=shared_by_session(), send=send)


def wanting_to_run() -> int:
    """Return the number of processes of the machine that run or want to run, this one included."""
    with open("/proc/loadavg") as file:
        return int(file.read().split()[3].partition("/")[0])
