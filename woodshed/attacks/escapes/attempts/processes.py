"""Attempts on processes of the host, and on the first process of the box."""

from __future__ import annotations

import ctypes
import os
import resource

from .base import Facts, attempt, found, looked_at, syscall

_SEIZE = 0x4206


@attempt("find a process of the host in /proc")
def host_process(facts: Facts) -> object:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if hit := found(file.read(), facts):
                    return f"{hit} in process {pid}"
        except OSError:
            continue
    return None


@attempt("signal a process of the host")
def signal_host(facts: Facts) -> object:
    os.kill(facts["pid"], 0)
    with open(f"/proc/{facts['pid']}/cmdline", "rb") as file:  # a process of the box may have that number
        return found(file.read(), facts)


@attempt("trace a process of the host")
def trace_host(facts: Facts) -> object:
    if not signal_host(facts):
        return None
    syscall(101, 117, _SEIZE, facts["pid"], 0, 0)
    return "attached"


@attempt("trace the first process of the box")
def trace_init(facts: Facts) -> object:
    syscall(101, 117, _SEIZE, 1, 0, 0)
    return "attached"


@attempt("read the memory of the first process")
def memory_of_init(facts: Facts) -> object:
    with open("/proc/1/maps") as file:
        start = int(file.readline().partition("-")[0], 16)
    with open("/proc/1/mem", "rb", buffering=0) as file:
        file.seek(start)
        return file.read(16)


@attempt("read the memory of the first process by system call")
def vm_readv(facts: Facts) -> object:
    class Piece(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    into = ctypes.create_string_buffer(16)
    ours, theirs = Piece(ctypes.addressof(into), 16), Piece(0x400000, 16)
    return looked_at(310, 270, 1, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)


@attempt("open the descriptors of the first process, including its connection to the host")
def descriptors_of_init(facts: Facts) -> object:
    opened = {}
    for number in os.listdir("/proc/1/fd"):
        for way in (os.O_RDONLY, os.O_WRONLY):
            try:
                os.close(os.open(f"/proc/1/fd/{number}", way | os.O_NONBLOCK))
                opened[number] = os.readlink(f"/proc/1/fd/{number}")
            except OSError:
                continue
    return {number: target for number, target in opened.items() if target != "/dev/null"}


@attempt("take a descriptor of the first process")
def steal_descriptor(facts: Facts) -> object:
    handle = syscall(434, 434, 1, 0)
    return [number for number in range(3, 64) if _taken(handle, number)]


def _taken(handle: int, number: int) -> bool:
    try:
        syscall(438, 438, handle, number, 0)
        return True
    except OSError:
        return False


@attempt("read the host's environment variables from those of the first process")
def environment_of_init(facts: Facts) -> object:
    with open("/proc/1/environ", "rb") as file:
        return found(file.read(), facts)


@attempt("read them from its own environment")
def own_environment(facts: Facts) -> object:
    with open("/proc/self/environ", "rb") as file:
        return found(file.read() + repr(os.environ).encode(), facts)


@attempt("change the limits of the first process")
def limits_of_init(facts: Facts) -> object:
    return str(resource.prlimit(1, resource.RLIMIT_NOFILE, resource.prlimit(1, resource.RLIMIT_NOFILE)))


@attempt("slow the first process down", kernel=True)
def priority_of_init(facts: Facts) -> object:
    os.setpriority(os.PRIO_PROCESS, 1, os.getpriority(os.PRIO_PROCESS, 1))
    return "it could be set"


@attempt("use descriptors that were left open")
def inherited_descriptors(facts: Facts) -> object:
    left = {}
    for number in range(3, 256):
        try:
            left[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
    return {n: target for n, target in left.items() if "socket" in target or facts["folder"] in target}
