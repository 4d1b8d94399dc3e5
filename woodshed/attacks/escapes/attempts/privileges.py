"""Attempts to gain privileges, to use dangerous parts of the kernel, and to read memory shared with the host.

Attempts on the kernel make system calls that a box does not need and that past escapes have used. They apply only to
boxes that run on the host's kernel.
"""

from __future__ import annotations

import ctypes
import os

from .base import Facts, attempt, found, looked_at, prctl, syscall

_NEW_USER, _NEW_MOUNT = 0x10000000, 0x20000
_GET_NO_NEW_PRIVS = 39


def _status(name: str) -> str:
    with open("/proc/self/status") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith(name + ":")), "0")


@attempt("become root")
def become_root(facts: Facts) -> object:
    os.setuid(0)
    return f"effective user {os.geteuid()}"


@attempt("become another user of the host")
def become_other(facts: Facts) -> object:
    os.setresuid(facts["uid"], facts["uid"], facts["uid"])
    return f"effective user {os.geteuid()}" if os.geteuid() == facts["uid"] else None


@attempt("have capabilities")
def capabilities(facts: Facts) -> object:
    held = {name: _status(name) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}
    return {name: value for name, value in held.items() if int(value, 16)}


@attempt("gain rights by running a set-user-id program")
def set_user_id(facts: Facts) -> object:
    return None if prctl(_GET_NO_NEW_PRIVS) else "a program would run with its owner's rights"


@attempt("mount a filesystem")
def mount(facts: Facts) -> object:
    os.makedirs("mounted", exist_ok=True)
    try:
        syscall(165, 40, b"none", b"mounted", b"tmpfs", 0, None)
        syscall(166, 39, b"mounted", 2)
        return "mounted"
    finally:
        os.rmdir("mounted")


@attempt("make a system folder writable by mounting it again")
def remount(facts: Facts) -> object:
    syscall(165, 40, b"none", b"/usr", b"", 32 | 4096, None)
    return plant(facts)


def plant(facts: Facts) -> str:
    path = f"/usr/{facts['name']}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))
    os.unlink(path)
    return f"{path} written"


@attempt("enter the mounts of the first process")
def enter_init(facts: Facts) -> object:
    fd = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    syscall(308, 268, fd, 0)
    with open(facts["path"], "rb") as file:
        return found(file.read(), facts)


@attempt("gain capabilities in a user namespace of its own", kernel=True)
def user_namespace(facts: Facts) -> object:
    syscall(272, 97, _NEW_USER)
    return f"capabilities {_status('CapEff')}"


@attempt("have mounts of its own", kernel=True)
def mount_namespace(facts: Facts) -> object:
    syscall(272, 97, _NEW_MOUNT)
    return "done"


@attempt("gain capabilities in a cloned user namespace", kernel=True)
def cloned_namespace(facts: Facts) -> object:
    pid = syscall(56, 220, _NEW_USER | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"child {pid}"


@attempt("give a file to root")
def give_away(facts: Facts) -> object:
    with open("given", "w") as file:
        os.fchown(file.fileno(), 0, 0)
    return "a file belongs to root now"


@attempt("load a program into the kernel", kernel=True)
def bpf(facts: Facts) -> object:
    return looked_at(321, 280, 0, 0, 0)


@attempt("count the events of the machine", kernel=True)
def perf_events(facts: Facts) -> object:
    return looked_at(298, 241, 0, 0, -1, -1, 0)


@attempt("handle page faults in user space", kernel=True)
def user_faults(facts: Facts) -> object:
    return looked_at(323, 282, 0)


@attempt("queue system calls past the filter", kernel=True)
def io_uring(facts: Facts) -> object:
    return looked_at(425, 425, 1, 0)


@attempt("start another kernel", kernel=True)
def kexec(facts: Facts) -> object:
    return looked_at(246, 104, 0, 0, 0, 0)


@attempt("load a module into the kernel", kernel=True)
def kernel_module(facts: Facts) -> object:
    return looked_at(175, 105, 0, 0, 0)


@attempt("make a filesystem with the new mount calls", kernel=True)
def new_mounts(facts: Facts) -> object:
    return looked_at(430, 430, b"tmpfs", 0)


@attempt("copy the tree of mounts", kernel=True)
def mount_tree(facts: Facts) -> object:
    return looked_at(428, 428, -100, b"/", 1)


@attempt("change the root with pivot_root", kernel=True)
def pivot_root(facts: Facts) -> object:
    return looked_at(155, 41, b".", b".")


@attempt("keep keys in the kernel", kernel=True)
def keyctl(facts: Facts) -> object:
    return looked_at(250, 219, 0, -3, 1)


@attempt("attach a memory segment of the host")
def shared_segment(facts: Facts) -> object:
    number = syscall(29, 194, facts["segment"], 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(number, None, 0o10000)
    return found(ctypes.string_at(place, 64), facts) if place not in (None, ctypes.c_void_p(-1).value) else None


@attempt("read the host's shared memory files")
def shared_file(facts: Facts) -> object:
    with open(f"/dev/shm/{facts['name']}", "rb") as file:
        return found(file.read(), facts)
