"""Both sides of the attempt to use up CPU time."""

from __future__ import annotations

import os
import time

from .base import STOP, leave

WORK = 0.6
"""CPU seconds that the other box needs on every CPU."""
_PROCESSES = 60


def spin() -> None:
    """Keep all CPUs busy until ``STOP`` exists."""
    for _ in range(_PROCESSES):
        if os.fork() == 0:
            os.setsid()
            while True:
                pass
    leave(f"{_PROCESSES} processes")
    while not os.path.exists(STOP):
        time.sleep(0.05)
    os.kill(-1, 9)


def work() -> None:
    """Use ``WORK`` CPU seconds on every CPU."""
    children = []
    for _ in range(os.cpu_count() or 1):
        pid = os.fork()
        if pid == 0:
            while time.process_time() < WORK:
                pass
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
