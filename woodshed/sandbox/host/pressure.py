"""Load of this machine, and admission control: how many boxes may live, and what must be free for another one."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from woodshed.sandbox.protocol import SandboxError

_STALL = {"memory": "full", "cpu": "some"}


@dataclass(frozen=True)
class Load:
    """``memory`` and ``disk``: bytes available. ``memory_stall``, ``cpu_stall``: percent of the last ten seconds in
    which all work waited for memory, or some work for a processor; None if the kernel has no PSI."""

    memory: int
    disk: int
    memory_stall: float | None = None
    cpu_stall: float | None = None


@dataclass(frozen=True)
class Bounds:
    """Minimum resources for another box; None for no bound. Sizes in bytes, stalls in percent (maximum)."""

    memory: int | None = 1 << 30
    disk: int | None = 256 << 20
    memory_stall: float | None = 20.0
    cpu_stall: float | None = None

    def problem(self, load: Load) -> str:
        """Describe the resource that is short; an empty string if none is."""
        if self.memory is not None and load.memory < self.memory:
            return f"{load.memory >> 20} MiB of memory available, sandbox.keep_memory is {self.memory >> 20} MiB"
        if self.disk is not None and load.disk < self.disk:
            return f"{load.disk >> 20} MiB of disk available, sandbox.keep_disk is {self.disk >> 20} MiB"
        for name, is_at, bound in (
            ("memory", load.memory_stall, self.memory_stall),
            ("cpu", load.cpu_stall, self.cpu_stall),
        ):
            if bound is not None and is_at is not None and is_at > bound:
                return f"work waits for {name} {is_at:.0f}% of the time, sandbox.{name}_stall is {bound:.0f}"
        return ""


def measure(root: Path, proc: Path = Path("/proc")) -> Load:
    """Measure the machine's load; ``root`` selects the disk. Raises OSError if there is no ``/proc`` (not Linux)."""
    available = 0
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    there = next(p for p in (root, *root.parents) if p.exists())
    return Load(available, shutil.disk_usage(there).free, *(_stall(proc, name) for name in _STALL))


def _stall(proc: Path, name: str) -> float | None:
    try:
        lines = (proc / "pressure" / name).read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        kind, average, *_ = line.split()
        if kind == _STALL[name]:
            return float(average.partition("=")[2])
    return None


_FRESH_SECONDS = 0.25
"""Seconds for which a measurement is used."""
_WARN_SECONDS = 60.0
"""Minimum time between two warnings."""
log = logging.getLogger(__name__)


class Admission:
    """Admits boxes, which take a place and give it back. Waiting boxes are admitted in order, one per measurement.

    A box is always admitted if none lives, so that bounds that cannot be met do not stop everything. ``relieve`` is
    called while a box waits for the machine. Belongs to the event loop that first uses it.
    """

    def __init__(
        self,
        look: Callable[[], Load],
        bounds: Bounds,
        *,
        most: int | None = None,
        patience: float = 300.0,
        relieve: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._look, self._bounds, self._most, self._patience = look, bounds, most, patience
        self._relieve = relieve
        self._measured = (-_FRESH_SECONDS, "")
        self._warned = -_WARN_SECONDS
        self._turn = asyncio.Lock()
        self.living = self.waited = 0
        self.seconds = 0.0
        """Total time that boxes waited."""

    async def take(self) -> None:
        """Wait for room. Raises SandboxError naming the short resource after ``patience`` seconds without room."""
        if not self._turn.locked() and not self.problem():
            self.living += 1
            return
        started = time.monotonic()
        self.waited += 1
        try:
            async with asyncio.timeout(self._patience), self._turn:
                while problem := self.problem():
                    if problem != self._full():
                        await self._tight(problem)
                    await asyncio.sleep(_FRESH_SECONDS / 10 if self._full() else _FRESH_SECONDS)
                self.living += 1
        except TimeoutError:
            raise SandboxError(
                f"no room for another box in {self._patience:.0f} s: {self.problem() or 'others were first'}; run "
                "fewer episodes at once, or lower that bound"
            ) from None
        finally:
            self.seconds += time.monotonic() - started

    def give(self) -> None:
        self.living -= 1

    def problem(self) -> str:
        """Return what prevents another box now, or an empty string."""
        return self._full() or ("" if self.living == 0 else self._short())

    async def _tight(self, problem: str) -> None:
        if time.monotonic() - self._warned > _WARN_SECONDS:
            self._warned = time.monotonic()
            log.warning("boxes wait for the machine: %s", problem)
        if self._relieve is not None:
            await self._relieve()

    def _full(self) -> str:
        if self._most is None or self.living < self._most:
            return ""
        return f"{self.living} boxes live, sandbox.max_boxes is {self._most}"

    def _short(self) -> str:
        at, text = self._measured
        if time.monotonic() - at >= _FRESH_SECONDS:
            text = self._bounds.problem(self._look())
            self._measured = (time.monotonic(), text)
        return text
