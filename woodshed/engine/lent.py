"""Cores of an idle trainer, lent to the engine: a CPU engine computes with them until the trainer takes them back.

The trainer holds an advisory lock on a file while it computes (``train/worker.py``). The kernel takes the lock back
from a process that dies, so a trainer that was killed lends its cores too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

import torch

LOOK_SECONDS = 0.05
"""Interval between checks of the lock, about one decoding step of a large policy."""


class LentCores:
    """Sets torch's thread count in the thread that calls ``use``: ``own``, or ``all`` while nobody holds the lock on
    the file ``lender``. If that file cannot be opened, no cores are lent."""

    def __init__(self, lender: Path, own: int, all: int) -> None:
        self.own, self.all = own, all
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(lender, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._looked = -LOOK_SECONDS
        self._lent = False

    def use(self) -> bool:
        """Set torch's thread count, and return True if it includes the trainer's cores."""
        now = time.perf_counter()
        if now - self._looked >= LOOK_SECONDS:
            self._looked, lent = now, self._free()
            if lent != self._lent:
                self._lent = lent
                torch.set_num_threads(self.all if lent else self.own)
        return self._lent

    def _free(self) -> bool:
        if self._file is None:
            return False
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
