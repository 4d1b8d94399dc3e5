"""Finds out what the gVisor backend can do on this machine, by doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woodshed.sandbox.host.probing import try_live_fork
from woodshed.sandbox.protocol import Probe

if TYPE_CHECKING:
    from .backend import GvisorBackend

SECONDS = 60.0
_LIMITS = {
    "memory": "address space, accounting", "processes": "gVisor's kernel", "cpu_seconds": "accounting",
    "file_size": "gVisor's kernel", "disk": "sizes of tmpfs", "wall_time": "deadline", "output": "cut off",
}  # fmt: skip


async def attempt(backend: GvisorBackend) -> Probe:
    """What a new ``backend`` can do."""
    return await try_live_fork(backend, memory=1 << 30, limits_in_force=_LIMITS)
