"""The system-call filter of a box: a classic BPF program, assembled here, installed once in PID 1 and inherited by all.

It refuses what programs in a box do not need and what widens the kernel's attack surface: new namespaces and mounts,
tracing, BPF, keys, io_uring, userfaultfd, kexec, modules, clocks, sockets other than AF_UNIX (in a box with a network
also AF_INET), memory outside of processes, and calls that change another process of the same user (PID 1 is one).
Everything else passes; namespaces, the empty capability set and the limits do the rest. See seccomp(2), and
``seccomp_filter`` in the kernel's documentation.
"""

from __future__ import annotations

import errno
import struct

# name: (x86_64, aarch64); None where the architecture has no such call.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "unshare": (272, 97), "setns": (308, 268),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "iopl": (172, None), "ioperm": (173, None),
    "vhangup": (153, 58), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42), "uselib": (134, None),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "migrate_pages": (256, 238), "move_pages": (279, 239), "mbind": (237, 235),
    "set_mempolicy": (238, 237), "modify_ldt": (154, None),
}  # fmt: skip
_ABSENT: dict[str, tuple[int | None, int | None]] = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # Memory that no process has mapped is not counted to any process, so a limit on processes' memory would not hold.
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190),  # threads and Python's multiprocessing use POSIX semaphores, which lie in /dev/shm
    # Counted by the kernel for the whole machine or by host user, so that one box could take all of it; programs work
    # without them. And calls that reveal which pages others have read.
    "io_setup": (206, 0), "mq_open": (240, 180), "mq_unlink": (241, 181), "cachestat": (451, 451),
    "clone3": (435, 435),  # its flags lie in memory where a filter cannot look; libc falls back to clone
}  # fmt: skip
# Calls that may only concern the caller itself: argument index that must be 0.
_SELF_ONLY: dict[str, tuple[int | None, int | None, int]] = {
    "prlimit64": (302, 261, 0), "sched_setaffinity": (203, 122, 0), "sched_setscheduler": (144, 119, 0),
    "sched_setparam": (142, 118, 0), "sched_setattr": (314, 274, 0), "setpriority": (141, 140, 1),
    "ioprio_set": (251, 30, 1),
}  # fmt: skip
_SOCKET, _SOCKETPAIR, _CLONE, _IOCTL = (41, 198), (53, 199), (56, 220), (16, 29)
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SHMGET = _ABSENT["shmget"]
_SHM_HUGETLB = 0o4000
_LOCK_BYTES = 4096
"""Maximum size of a System V segment in a box with a network: PostgreSQL locks its data folder with one of 56 bytes. A
namespace has at most 4,096 segments, so together they hold 16 MiB."""

_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_NAMESPACES = 0x7E020080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME}
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C

_LOAD, _JEQ, _JGT, _JGE, _JSET, _RET = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def _op(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def _argument(index: int) -> int:
    return 16 + 8 * index  # offset of the low word in struct seccomp_data (little-endian)


def box_filter(machine: str, *, network: bool = False, alone: bool = True) -> bytes:
    """Return the program for ``machine`` (``x86_64`` or ``aarch64``) as an array of ``sock_filter``. Raises KeyError.

    ``network``: allow sockets of AF_INET and AF_INET6 too, and System V shared memory segments of one page. ``alone``:
    the box has namespaces of its own; without them it gets socket pairs only.
    """
    arch, column = _ARCH[machine]
    eperm, enosys = _op(_RET, _ERRNO | errno.EPERM), _op(_RET, _ERRNO | errno.ENOSYS)
    unsupported = _op(_RET, _ERRNO | errno.EAFNOSUPPORT)
    out = [_op(_LOAD, 4), _op(_JEQ, arch, jt=1), _op(_RET, _KILL), _op(_LOAD, 0)]
    if machine == "x86_64":  # the x32 ABI has its own numbers
        out += [_op(_JGE, 0x40000000, jf=1), enosys]
    for table, verdict in ((_DENIED, eperm), (_ABSENT, enosys)):
        for numbers in table.values():
            if numbers[column] is not None and not (network and numbers is _SHMGET):
                out += [_op(_JEQ, numbers[column] or 0, jf=1), verdict]
    # From here each block loads an argument, so it must end in a verdict on every path.
    allow = _op(_RET, _ALLOW)
    for x86, arm, index in _SELF_ONLY.values():
        number = (x86, arm)[column]
        if number is not None:
            out += [_op(_JEQ, number, jf=4), _op(_LOAD, _argument(index)), _op(_JEQ, 0, jf=1), allow, eperm]
    if network:
        out += [_op(_JEQ, _SHMGET[column] or 0, jf=8), _op(_LOAD, _argument(1) + 4), _op(_JEQ, 0, jf=4)]
        out += [_op(_LOAD, _argument(1)), _op(_JGT, _LOCK_BYTES, jt=2), _op(_LOAD, _argument(2))]
        out += [_op(_JSET, _SHM_HUGETLB, jf=1), enosys, allow]
    kinds = (_AF_UNIX, _AF_INET, _AF_INET6) if network else (_AF_UNIX,)
    for number, families in ((_SOCKET[column], kinds if alone else ()), (_SOCKETPAIR[column], kinds)):
        checks = [verdict for family in families for verdict in (_op(_JEQ, family, jf=1), allow)]
        out += [_op(_JEQ, number, jf=2 + len(checks)), _op(_LOAD, _argument(0)), *checks, unsupported]
    out += [_op(_JEQ, _CLONE[column], jf=4), _op(_LOAD, _argument(0)), _op(_JSET, _NAMESPACES, jt=1), allow, eperm]
    out += [_op(_JEQ, _IOCTL[column], jf=5), _op(_LOAD, _argument(1)), _op(_JEQ, _TIOCSTI, jt=2)]
    out += [_op(_JEQ, _TIOCLINUX, jt=1), allow, eperm]
    out += [allow]
    return b"".join(out)
