"""System calls that Python has no function for, by ctypes: namespaces, mounts, capabilities, confined opens.

Every function raises ``OSError`` with the call's name. Imports nothing heavy, because fork server and PID 1 use it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_pylibc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the GIL, which a process that clones itself must hold

MACHINE = platform.machine()
_SYSCALLS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "capset": 126, "seccomp": 317},
    "aarch64": {"clone": 220, "pivot_root": 41, "capset": 91, "seccomp": 277},
}
# System calls added since Linux 5.0 have the same number on every architecture.
OPEN_TREE, MOVE_MOUNT, CLOSE_RANGE, OPENAT2, PIDFD_GETFD, MOUNT_SETATTR = 428, 429, 436, 437, 438, 442

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWTIME = 0x10000000, 0x20000000, 0x40000000, 0x80

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_NOATIME = 4096, 16384, 1 << 18, 1024
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_SET_NAME, PR_CAP_AMBIENT = 36, 38, 15, 47
CAP_KILL, CAP_SYS_PTRACE = 5, 19

RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08
PROC_MAGIC, TMPFS_MAGIC = 0x9FA0, 0x01021994


def _number(name: str) -> int:
    try:
        return _SYSCALLS[MACHINE][name]
    except KeyError:
        raise OSError(38, f"the namespace sandbox knows no system call numbers for {MACHINE}") from None


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _call(name: str, number: int, *args: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *args), name)


def clone(flags: int) -> int:
    """Fork into new namespaces (``CLONE_NEW*``); returns 0 in the child. Only for processes with one thread."""
    api = ctypes.pythonapi
    number = ctypes.c_long(_number("clone"))
    zero = ctypes.c_long(0)
    api.PyOS_BeforeFork()
    pid = _pylibc.syscall(number, ctypes.c_long(flags | signal.SIGCHLD), zero, zero, zero, zero)
    if pid == 0:
        api.PyOS_AfterFork_Child()
    else:
        code = ctypes.get_errno()
        api.PyOS_AfterFork_Parent()
        ctypes.set_errno(code)
    return _check(pid, "clone")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def map_user(inside: int, uid: int, gid: int) -> None:
    """Map the host's ``uid`` and ``gid`` to the only user and group ``inside`` of this process's user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {uid} 1"), ("gid_map", f"{inside} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def enter_time() -> None:
    """Enter a new time namespace. Boxes that shared one could lock each other's inode of its file in /proc."""
    if not os.path.exists("/proc/self/ns/time"):
        return
    unshare(CLONE_NEWTIME)
    fd = os.open("/proc/self/ns/time_for_children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(CLONE_NEWTIME)), "setns")
    finally:
        os.close(fd)


def is_mapped(uid: int) -> bool:
    """Return whether our user namespace maps ``uid``."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _, count in ranges)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data is not None else None,
    )
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def take_descriptor(pid: int, number: int) -> int:
    """Copy the descriptor ``number`` of another process; needs CAP_SYS_PTRACE over its user namespace."""
    process = os.pidfd_open(pid)
    try:
        return _call("pidfd_getfd", PIDFD_GETFD, ctypes.c_int(process), ctypes.c_int(number), ctypes.c_uint(0))
    finally:
        os.close(process)


def umount(target: str) -> None:
    """Detach the mount and everything below it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _call("pivot_root", _number("pivot_root"), os.fsencode(new), os.fsencode(old))


def open_tree(path: str) -> int:
    """Open a descriptor of a detached copy of the mount at ``path``."""
    flags = 1 | os.O_CLOEXEC  # OPEN_TREE_CLONE
    return _call("open_tree", OPEN_TREE, ctypes.c_int(-100), os.fsencode(path), ctypes.c_uint(flags))


def mapped_tree(path: str, namespace: int) -> int:
    """Like ``open_tree``, with owners mapped by a user namespace (a descriptor); not every filesystem supports it."""
    fd = open_tree(path)
    attr = struct.pack("=QQQQ", 0x100000, 0, 0, namespace)  # MOUNT_ATTR_IDMAP
    try:
        _call(
            f"mount_setattr {path}",
            MOUNT_SETATTR,
            ctypes.c_int(fd),
            b"",
            ctypes.c_uint(0x1000),
            attr,
            ctypes.c_size_t(len(attr)),
        )
    except OSError:
        os.close(fd)
        raise
    return fd


def move_mount(fd: int, target: str) -> None:
    """Attach a detached mount."""
    empty = 4  # MOVE_MOUNT_F_EMPTY_PATH
    here = ctypes.c_int(-100)
    _call("move_mount", MOVE_MOUNT, ctypes.c_int(fd), b"", here, os.fsencode(target), ctypes.c_uint(empty))


def close_range(first: int, last: int = 0x7FFFFFFF) -> None:
    _call("close_range", CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0))


def openat2(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    """Open a path, refusing what ``resolve`` forbids on the way. Raises the OSError subclass of the errno.

    Without the call (gVisor's kernel) the path is opened step by step if no link may be followed, else directly: such a
    box has a kernel of its own, so no link leads to anything of the host.
    """
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    fd = _libc.syscall(ctypes.c_long(OPENAT2), ctypes.c_int(folder), os.fsencode(path), how, ctypes.c_size_t(len(how)))
    if fd < 0:
        code = ctypes.get_errno()
        if code == errno.ENOSYS:
            return _open_by_steps(folder, path, flags, mode, resolve)
        raise OSError(code, os.strerror(code), path)
    return fd


def _open_by_steps(folder: int, path: str, flags: int, mode: int, resolve: int) -> int:
    where = None if folder == -100 else folder
    if not resolve & RESOLVE_NO_SYMLINKS:
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=where)
    *folders, name = path.split("/")
    opened: list[int] = []
    try:
        for part in folders:
            where = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=where)
            opened.append(where)
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=where)
    finally:
        for fd in opened:
            os.close(fd)


def filesystem(fd: int) -> int:
    """Return the magic number of the filesystem that an open file lies on."""
    buffer = ctypes.create_string_buffer(256)
    _check(_libc.fstatfs(ctypes.c_int(fd), buffer), "fstatfs")
    return int.from_bytes(buffer.raw[:8], "little")


def prctl(option: int, arg: int = 0, arg3: int = 0) -> int:
    zero = ctypes.c_ulong(0)
    return _check(
        _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(arg), ctypes.c_ulong(arg3), zero, zero), f"prctl {option}"
    )


def drop_bounding_set() -> None:
    """Empty the capability bounding set, so that no program file can grant a capability afterwards."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            return


_NO_CAPABILITIES = (struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", 0, 0, 0, 0, 0, 0))


def capset(capabilities: int) -> None:
    """Set the permitted and effective sets to the bit mask ``capabilities``, and empty the inheritable set."""
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    header = ctypes.create_string_buffer(_NO_CAPABILITIES[0])
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _call("capset", _number("capset"), header, data)


def make_effective(capability: int) -> None:
    """Make one of the permitted capabilities effective; for the first 32 only."""
    header = ctypes.create_string_buffer(_NO_CAPABILITIES[0])
    data = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, data), "capget")
    data[0] |= 1 << capability
    _check(_libc.capset(header, data), "capset")


def install_seccomp(program: bytes) -> None:
    """Install a BPF program (array of ``sock_filter``); needs no_new_privs."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _call("seccomp", _number("seccomp"), ctypes.c_uint(1), ctypes.c_uint(0), fprog)


def seal_mount(target: str, *, recursive: bool, nodev: bool) -> None:
    """Make a mount read-only and nosuid (and nodev), keeping the flags that it has. Linux 5.12 or newer."""
    attributes = 1 | 2 | (4 if nodev else 0)  # MOUNT_ATTR_RDONLY | NOSUID | NODEV
    attr = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = 0x8000 if recursive else 0  # AT_RECURSIVE
    _call(
        f"mount_setattr {target}",
        MOUNT_SETATTR,
        ctypes.c_int(-100),
        os.fsencode(target),
        ctypes.c_uint(flags),
        attr,
        ctypes.c_size_t(len(attr)),
    )
