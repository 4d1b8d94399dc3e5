"""Finds out what the microvm backend can do on this machine, by doing it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from ..probing import probe_by, try_live_fork
from ..protocol import Probe
from .backend import MicrovmBackend

_SECONDS = 300.0
_LIMITS = {
    "memory": "size of the machine, address space, accounting", "processes": "RLIMIT_NPROC",
    "cpu_seconds": "accounting", "file_size": "RLIMIT_FSIZE", "disk": "size of a tmpfs", "wall_time": "deadline",
    "output": "cut off",
}  # fmt: skip


@lru_cache(maxsize=8)
def probe_microvm(root: Path | None = None) -> Probe:
    """Boots a guest, runs commands, writes a file, snapshots and forks. Callable from anywhere.

    Takes seconds, and minutes the first time on a machine, when it makes the image of /usr.
    """
    return probe_by(lambda: MicrovmBackend(root), _try, _SECONDS)


async def _try(backend: MicrovmBackend) -> Probe:
    found = await try_live_fork(backend, memory=256 << 20, limits_in_force=_LIMITS)
    slow = "no hardware virtualisation: guests are emulated, ten to thirty times slower than the machine"
    return replace(
        found,
        reasons=(slow,) if found.ok and backend.accelerator == "tcg" else found.reasons,
        capabilities=found.capabilities | {backend.accelerator},
    )
