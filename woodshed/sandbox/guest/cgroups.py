"""Control groups for boxes, if this process may make any: the kernel then counts everything that a box holds.

Version 1 as root (``memory`` and ``pids`` hierarchies); version 2 below the nearest group above ours that delegates
both controllers and is writable for us. Each fork server has a group named like its folder, with one group for each box
in it; they are removed with the box, with the fork server, or by the next owner that sweeps. If there is a ``cpu``
controller too, every box gets an equal share of the processors, however many processes it runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

_CONTROLLERS = ("memory", "pids")
_SHARES, _WEIGHT, _MOST_SHARES, _MOST_WEIGHT = 1024, 100, 1 << 18, 10_000
"""Weights of the cpu controller: the kernel's default for a group, which equals that of a process, and the maximum
(version 1, version 2)."""


class Place(NamedTuple):
    """Folders in which groups can be made: for memory, pids and, if any, cpu (version 2: the same for all)."""

    version: Literal["v1", "v2"]
    folders: tuple[str, ...]
    cpu: bool


class Joining(NamedTuple):
    """Open files of a box's group: its first process writes ``0`` to each of ``join``; ``events`` counts kills."""

    join: tuple[int, ...]
    events: int


def find_place(mountinfo: str = "/proc/self/mountinfo", membership: str = "/proc/self/cgroup") -> Place | None:
    """Find where this process can make groups with both controllers; None if nowhere."""
    try:
        return _find(mountinfo, membership)
    except OSError:  # a kernel without groups, or no /proc
        return None


def _find(mountinfo: str, membership: str) -> Place | None:
    ours: dict[str, str] = {}
    with open(membership) as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            ours |= dict.fromkeys(controllers.split(","), path)
    found: dict[str, str] = {}
    with open(mountinfo) as file:
        for line in file:
            left, _, right = line.partition(" - ")
            root, mounted = left.split()[3:5]
            kind, _, options = right.split()[:3]
            if kind == "cgroup2":
                names = [""]
            elif kind == "cgroup":
                names = [name for name in (*_CONTROLLERS, "cpu") if name in options.split(",")]
            else:
                continue
            for name in names:
                root = root.rstrip("/")
                if name in ours and ours[name].startswith(root):
                    found[name] = os.path.join(mounted, ours[name][len(root) :].strip("/")).rstrip("/")
    if all(name in found and os.access(found[name], os.W_OK) for name in _CONTROLLERS):
        cpu = "cpu" in found and os.access(found["cpu"], os.W_OK)
        return Place("v1", tuple(found[name] for name in (*_CONTROLLERS, *(["cpu"] if cpu else []))), cpu)
    return _handed_on(found[""]) if "" in found else None


def _handed_on(folder: str) -> Place | None:
    """Find the nearest group above ``folder`` that delegates the controllers and is writable for us.

    Our own group is rarely suitable: a group with processes cannot have groups with controllers below it.
    """
    while os.path.exists(f"{folder}/cgroup.subtree_control"):
        with open(f"{folder}/cgroup.subtree_control") as file:
            handed = set(file.read().split())
        if (
            handed.issuperset(_CONTROLLERS)
            and os.access(f"{folder}/cgroup.procs", os.W_OK)
            and os.access(folder, os.W_OK)
        ):
            return Place("v2", (folder,), "cpu" in handed)
        folder = os.path.dirname(folder)
    return None


class Groups:
    """The control groups of one fork server's boxes."""

    def __init__(self, place: Place, name: str) -> None:
        """Raise OSError if no group can be made after all."""
        self.version, self.cpu = place.version, place.cpu
        self._folders = [f"{folder}/{name}" for folder in place.folders]
        for folder in self._folders:
            os.mkdir(folder)
            if self.version == "v2":
                _write(f"{folder}/cgroup.subtree_control", "+memory +pids" + (" +cpu" if place.cpu else ""))
        if place.cpu:  # all boxes together get the weight of one process on every processor
            processors = os.cpu_count() or 1
            if place.version == "v1":
                _write(f"{self._folders[2]}/cpu.shares", str(min(_SHARES * processors, _MOST_SHARES)))
            else:
                _write(f"{self._folders[0]}/cpu.weight", str(min(_WEIGHT * processors, _MOST_WEIGHT)))

    def make(self, box: int, memory: int | None, processes: int | None) -> Joining:
        """Make a group for a box; ``memory`` in bytes includes its files, which lie in memory too.

        The caller closes the descriptors of the result.
        """
        folders = [f"{folder}/{box}" for folder in self._folders]
        first, second = folders[0], folders[min(1, len(folders) - 1)]
        for folder in folders:
            os.mkdir(folder)
        v1 = self.version == "v1"
        if memory is not None:
            _write(f"{first}/{'memory.limit_in_bytes' if v1 else 'memory.max'}", str(memory))
            with contextlib.suppress(FileNotFoundError, PermissionError):  # no swap, or swap is not counted
                if v1:
                    _write(f"{first}/memory.memsw.limit_in_bytes", str(memory))
                else:
                    _write(f"{first}/memory.swap.max", "0")
        if processes is not None:
            _write(f"{second}/pids.max", str(processes))
        opened: list[int] = []
        try:
            # ``tasks``: moving a single thread does not wait for other threads.
            for folder in folders:
                opened.append(os.open(f"{folder}/{'tasks' if v1 else 'cgroup.procs'}", os.O_WRONLY | os.O_CLOEXEC))
            events = os.open(f"{first}/{'memory.oom_control' if v1 else 'memory.events'}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return Joining(tuple(opened), events)

    def remove(self, box: int) -> bool:
        """Remove the group of an ended box; return whether the kernel killed a process in it because it was full.

        If the whole machine is out of memory, the kernel also kills in groups that have not reached their limit.
        """
        v1, folder = self.version == "v1", f"{self._folders[0]}/{box}"
        killed = False
        with contextlib.suppress(OSError):
            fd = os.open(f"{folder}/{'memory.oom_control' if v1 else 'memory.events'}", os.O_RDONLY)
            killed = kills(fd) > 0
            os.close(fd)
            if killed:
                killed = _reached_limit(folder, v1=v1)
        for folder in self._folders:
            _remove(f"{folder}/{box}")
        return killed

    def close(self) -> None:
        for folder in self._folders:
            _remove_all(folder)


def kills(events: int) -> int:
    """Count the processes that the kernel killed in a group because its memory was full."""
    for line in os.pread(events, 4096, 0).splitlines():
        name, _, count = line.partition(b" ")
        if name == b"oom_kill":
            return int(count)
    return 0


def _reached_limit(folder: str, *, v1: bool) -> bool:
    """Return whether a group ever reached its memory limit; also True if its limit is that of the machine.

    If this is clearly False, the kernel killed because other processes had taken the memory.
    """
    if v1:  # recent kernels do not count failures in version 1
        most, limit = (int(_read(f"{folder}/memory.{n}_in_bytes")) for n in ("max_usage", "limit"))
        return most >= limit - (limit >> 4) or limit >= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _read(f"{folder}/memory.max").strip() == "max":
        return True
    lines = _read(f"{folder}/memory.events").splitlines()
    return any(line.startswith("max ") and line != "max 0" for line in lines)


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def sweep(prefix: str, dead: Callable[[str], bool]) -> None:
    """Remove groups beside ours that begin with ``prefix`` and whose owner is dead."""
    place = find_place()
    for folder in place.folders if place is not None else ():
        for name in os.listdir(folder):
            if name.startswith(prefix) and dead(name):
                _remove_all(f"{folder}/{name}")


def _remove_all(folder: str) -> None:
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _remove(entry.path)
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a group; retried, because a process that was waited for may still be leaving it."""
    for _ in range(50):
        try:
            os.rmdir(folder)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
