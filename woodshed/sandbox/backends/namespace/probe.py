"""Probe of the namespace backend: tries out every operation and limit on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from woodshed.sandbox.protocol import BoxSpec, Limits, Probe

if TYPE_CHECKING:
    from .backend import NamespaceBackend

SECONDS = 30.0
_ENFORCED = {
    "memory": "address space, accounting of processes",
    "processes": "RLIMIT_NPROC",
    "cpu_seconds": "accounting, RLIMIT_CPU for exec_python",
    "file_size": "RLIMIT_FSIZE",
    "disk": "size of a tmpfs",
    "wall_time": "deadline",
    "output": "cut off",
}
CHECKS = """
import os, resource
rows = {"memory": resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 30,
        "file_size": resource.getrlimit(resource.RLIMIT_FSIZE)[0] == 1 << 20,
        "cpu_seconds": resource.getrlimit(resource.RLIMIT_CPU)[0] == 5}
pids = []
try:
    for _ in range(40):
        pid = os.fork()
        if pid == 0:
            os.read(0, 1)
            os._exit(0)
        pids.append(pid)
except OSError:
    rows["processes"] = len(pids) < 20
for pid in pids:
    os.kill(pid, 9)
try:
    for n in range(9):
        with open(f"fill{n}", "wb") as file:
            file.write(bytes(1 << 20))
except OSError:
    rows["disk"] = True
print(*(name for name, held in rows.items() if held))
"""


async def attempt(backend: NamespaceBackend) -> Probe:
    """Try every operation and limit on a backend that was just opened."""
    limits = Limits(memory=1 << 30, processes=16, cpu_seconds=5, file_size=1 << 20, disk=8 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    reasons, capabilities = [], {"exec", "exec_python"}
    result = await box.exec("cat hello && mkdir -p /opt/x && rm -r /opt && mkdir /opt && ls -A /opt")
    if (result.returncode, result.stdout) != (0, b"written"):
        detail = result.stderr.decode(errors="replace").strip() or f"exit status {result.returncode}"
        reasons.append(f"overlayfs cannot replace folders in a user namespace here (Linux 6.6 or newer can): {detail}")
    snapshot = await box.snapshot()
    [fork] = await backend.fork(snapshot)
    if await fork.read("hello") == b"written":
        capabilities |= {"fs_snapshot", "fork"}
    checked = await fork.exec_python(CHECKS)
    held, missing = in_force(checked.stdout, _ENFORCED)
    reasons += missing
    capabilities.add("root" if backend.privileged else "rootless")
    return Probe(not reasons, tuple(reasons), frozenset(capabilities), _mechanisms(held, backend.cgroups))


def in_force(said: bytes, enforced: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Evaluate the output of ``CHECKS``: return the limits of ``enforced`` that hold (name -> mechanism), and a reason
    for each limit that does not hold."""
    held = {*said.decode(errors="replace").split(), "wall_time", "output"}
    missing = [f"the limit {name!r} is not in force" for name in sorted(set(enforced) - held)]
    return {name: how for name, how in enforced.items() if name in held}, missing


def _mechanisms(held: dict[str, str], cgroups: str) -> dict[str, str]:
    """Add control groups to the mechanisms. They are in force, because a box that cannot join its group is not made."""
    counted = f"cgroup {cgroups}, " if cgroups else ""
    return {name: (counted if name in ("memory", "processes") else "") + how for name, how in held.items()}
