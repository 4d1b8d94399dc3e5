"""Finds out what a container engine can do on this machine, by doing it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from woodshed.sandbox.backends.namespace.probe import CHECKS, in_force
from woodshed.sandbox.protocol import BoxSpec, Limits, Probe

if TYPE_CHECKING:
    from .backend import DockerBackend

SECONDS = 90.0
_ENFORCED = {  # no engine bounds a container's disk on an ordinary file system
    "memory": "the engine's control group, address space, accounting", "processes": "the engine's control group",
    "cpu_seconds": "accounting, RLIMIT_CPU for exec_python", "file_size": "RLIMIT_FSIZE",
    "wall_time": "deadline", "output": "cut off",
}  # fmt: skip


async def attempt(backend: DockerBackend) -> Probe:
    """Try every operation and limit on a backend that was just opened."""
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
