"""Finds out what the gVisor backend can do on this machine, by doing it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..probing import probe_by
from ..protocol import BoxSpec, Limits, Probe
from .backend import GvisorBackend

_SECONDS = 60.0


@lru_cache(maxsize=8)
def probe_gvisor(root: Path | None = None) -> Probe:
    """Creates a box, runs commands, writes a file, snapshots and forks, within 60 s. Callable from anywhere."""
    return probe_by(lambda: GvisorBackend(root), _try, _SECONDS)


async def _try(backend: GvisorBackend) -> Probe:
    limits = Limits(memory=1 << 30, processes=16, cpu_seconds=5, file_size=1 << 20, disk=8 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    result = await box.exec("cat hello && (sleep 1000 & echo $! > pid)")
    if (result.returncode, result.stdout) != (0, b"written"):
        return Probe(False, (f"a command fails: {result.stderr.decode(errors='replace').strip() or result}",))
    [fork] = await backend.fork(await box.snapshot("full"))
    alive = await fork.exec("kill -0 $(cat pid)")
    if alive.returncode:
        return Probe(False, ("processes do not survive a snapshot",), frozenset({"exec"}))
    held = frozenset({"memory", "processes", "cpu_seconds", "file_size", "disk", "wall_time", "output"})
    return Probe(True, (), frozenset({"exec", "exec_python", "fs_snapshot", "full_snapshot", "fork"}), held)
