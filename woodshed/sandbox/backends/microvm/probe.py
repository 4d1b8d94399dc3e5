"""Finds out what the microvm backend can do on this machine, by doing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from woodshed.sandbox.host.probing import try_live_fork
from woodshed.sandbox.protocol import Probe

if TYPE_CHECKING:
    from .backend import MicrovmBackend

SECONDS = 300.0
_LIMITS = {
    "memory": "size of the machine, address space, accounting", "processes": "RLIMIT_NPROC",
    "cpu_seconds": "accounting", "file_size": "RLIMIT_FSIZE", "disk": "size of a tmpfs", "wall_time": "deadline",
    "output": "cut off",
}  # fmt: skip


async def attempt(backend: MicrovmBackend) -> Probe:
    """Try every operation and limit on a backend that was just opened."""
    found = await try_live_fork(backend, memory=256 << 20, limits_in_force=_LIMITS)
    slow = "no hardware virtualisation: guests are emulated, ten to thirty times slower than the machine"
    return replace(
        found,
        reasons=(slow,) if found.ok and backend.accelerator == "tcg" else found.reasons,
        capabilities=found.capabilities | {backend.accelerator},
    )
