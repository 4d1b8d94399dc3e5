"""Finds out what the gVisor backend can do on this machine, by doing it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..probing import probe_by, try_live_fork
from ..protocol import Probe
from .backend import GvisorBackend

_SECONDS = 60.0
_LIMITS = {
    "memory": "address space, accounting", "processes": "gVisor's kernel", "cpu_seconds": "accounting",
    "file_size": "gVisor's kernel", "disk": "sizes of tmpfs", "wall_time": "deadline", "output": "cut off",
}  # fmt: skip


@lru_cache(maxsize=8)
def probe_gvisor(root: Path | None = None) -> Probe:
    """Creates a box, runs commands, writes a file, snapshots and forks, within 60 s. Callable from anywhere."""
    return probe_by(lambda: GvisorBackend(root), _try, _SECONDS)


async def _try(backend: GvisorBackend) -> Probe:
    return await try_live_fork(backend, memory=1 << 30, limits_in_force=_LIMITS)
