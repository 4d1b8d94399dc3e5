"""Finds out what the landlock backend can do on this machine, by doing it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..probe import CHECKS, in_force
from ..probing import probe_by
from ..protocol import BoxSpec, Limits, Probe
from .backend import LandlockBackend

_SECONDS = 30.0
_ENFORCED = {
    "memory": "address space, accounting", "processes": "RLIMIT_NPROC",
    "cpu_seconds": "accounting, RLIMIT_CPU for exec_python",
    "file_size": "RLIMIT_FSIZE", "wall_time": "deadline", "output": "cut off",
}  # fmt: skip


@lru_cache(maxsize=8)
def probe_landlock(root: Path | None = None) -> Probe:
    """Creates a box, runs commands, tries to read a file of the host, snapshots and forks, within 30 s."""
    return probe_by(lambda: LandlockBackend(root), _try, _SECONDS)


async def _try(backend: LandlockBackend) -> Probe:
    limits = Limits(memory=1 << 30, processes=16, cpu_seconds=5, file_size=1 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    result = await box.exec("cat hello && ! ls /etc /tmp /proc 2> /dev/null")
    if (result.returncode, result.stdout) != (0, b"written"):
        return Probe(False, (f"a command fails, or sees what it must not: {result}",))
    [fork] = await backend.fork(await box.snapshot())
    if await fork.read("hello") != b"written":
        return Probe(False, ("a copy does not hold the box's files",), frozenset({"exec", "exec_python"}))
    checked = await fork.exec_python(CHECKS)
    held, missing = in_force(checked.stdout, _ENFORCED)
    return Probe(not missing, tuple(missing), frozenset({"weaker", "exec", "exec_python", "fs_snapshot", "fork"}), held)
