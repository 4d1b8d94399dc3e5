"""How much of this machine is left, and whether that is enough for another box."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

_STALL = {"memory": "full", "cpu": "some"}


@dataclass(frozen=True)
class Load:
    """``memory`` and ``disk``: bytes available. ``memory_stall``, ``cpu_stall``: percent of the last ten seconds in
    which all (memory) or some (processor) work waited for it; None where the kernel does not tell (no PSI)."""

    memory: int
    disk: int
    memory_stall: float | None = None
    cpu_stall: float | None = None


@dataclass(frozen=True)
class Bounds:
    """What has to be left for another box; None for no bound. Sizes in bytes, stalls in percent."""

    memory: int | None = 1 << 30
    disk: int | None = 256 << 20
    memory_stall: float | None = 20.0
    cpu_stall: float | None = None

    def problem(self, load: Load) -> str:
        """What is short, or nothing."""
        if self.memory is not None and load.memory < self.memory:
            return f"{load.memory >> 20} MiB of memory available, sandbox.keep_memory is {self.memory >> 20} MiB"
        if self.disk is not None and load.disk < self.disk:
            return f"{load.disk >> 20} MiB of disk available, sandbox.keep_disk is {self.disk >> 20} MiB"
        for name, is_at, bound in (
            ("memory", load.memory_stall, self.memory_stall), ("cpu", load.cpu_stall, self.cpu_stall),
        ):  # fmt: skip
            if bound is not None and is_at is not None and is_at > bound:
                return f"work waits for {name} {is_at:.0f}% of the time, sandbox.{name}_stall is {bound:.0f}"
        return ""


def measure(root: Path, proc: Path = Path("/proc")) -> Load:
    """The machine now; ``root`` says which disk. Raises OSError where the kernel does not tell (not Linux)."""
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
