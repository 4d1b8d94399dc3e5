"""Finds out what a container engine can do on this machine, by doing it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ..probe import CHECKS, in_force
from ..probing import probe_by
from ..protocol import BoxSpec, Limits, Probe
from .backend import DockerBackend

_SECONDS = 90.0
_ENFORCED = {  # no engine bounds a container's disk on an ordinary file system
    "memory": "the engine's control group, address space, accounting", "processes": "the engine's control group",
    "cpu_seconds": "accounting, RLIMIT_CPU for exec_python", "file_size": "RLIMIT_FSIZE",
    "wall_time": "deadline", "output": "cut off",
}  # fmt: skip


@lru_cache(maxsize=8)
def probe_docker(name: str, root: Path | None = None) -> Probe:
    """Creates a box, runs commands, writes a file, commits and forks, within 90 s. Callable from anywhere."""
    return probe_by(lambda: DockerBackend(name, root), _try, _SECONDS)


async def _try(backend: DockerBackend) -> Probe:
    limits = Limits(memory=1 << 30, processes=16, cpu_seconds=5, file_size=1 << 20, disk=8 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    result = await box.exec("cat hello")
    if (result.returncode, result.stdout) != (0, b"written"):
        return Probe(False, (f"a command fails: {result.stderr.decode(errors='replace').strip() or result}",))
    [fork] = await backend.fork(await box.snapshot())
    if await fork.read("hello") != b"written":
        return Probe(False, ("a commit does not hold the box's files",), frozenset({"exec", "exec_python"}))
    checked = await fork.exec_python(CHECKS)
    held, missing = in_force(checked.stdout, _ENFORCED)
    return Probe(not missing, tuple(missing), frozenset({"exec", "exec_python", "fs_snapshot", "fork", "images"}), held)
