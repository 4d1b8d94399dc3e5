"""Parts of the kernel that a box has no use for and that have let others out. They count where it is the host's."""

from __future__ import annotations

from .base import Facts, attempt, looked_at


@attempt("load a program into the kernel", kernel=True)
def bpf(facts: Facts) -> object:
    return looked_at(321, 280, 0, 0, 0)


@attempt("count the events of the machine", kernel=True)
def perf_events(facts: Facts) -> object:
    return looked_at(298, 241, 0, 0, -1, -1, 0)


@attempt("handle page faults of the kernel", kernel=True)
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


@attempt("make a filesystem by the new calls", kernel=True)
def new_mounts(facts: Facts) -> object:
    return looked_at(430, 430, b"tmpfs", 0)


@attempt("copy the tree of mounts", kernel=True)
def mount_tree(facts: Facts) -> object:
    return looked_at(428, 428, -100, b"/", 1)


@attempt("change the root by exchanging mounts", kernel=True)
def pivot_root(facts: Facts) -> object:
    return looked_at(155, 41, b".", b".")


@attempt("keep keys in the kernel", kernel=True)
def keyctl(facts: Facts) -> object:
    return looked_at(250, 219, 0, -3, 1)
