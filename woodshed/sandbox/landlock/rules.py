"""Landlock by its system calls: what a process and all that it starts may reach. See landlock(7)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_BENEATH = 1
OLDEST = 6
"""The version of Landlock (Linux 6.12) from which signals and abstract sockets can be kept in."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL = (1 << 16) - 1  # every right on files up to device ioctl (ABI 5)
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | 1 << 14 | 1 << 15  # truncate, device ioctl
READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = _ALL
DEVICE = _READ_FILE | _WRITE_FILE
_TCP = 3
_SCOPES = 3  # abstract sockets, signals

_libc = ctypes.CDLL(None, use_errno=True)


def version() -> int:
    """Of the kernel's Landlock; 0 where it has none, or has it switched off."""
    found = _libc.syscall(ctypes.c_long(_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1))
    return max(0, int(found))


def ruleset(rights: Iterable[tuple[str, int]]) -> int:
    """A descriptor of the rules: no file, no TCP, no signal and no abstract socket outside, but ``rights`` on paths.

    Paths that do not exist are left out. Raises OSError.
    """
    attributes = struct.pack("=QQQ", _ALL, _TCP, _SCOPES)
    fd = _call("landlock_create_ruleset", _CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    for path, allowed in rights:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            _add(fd, path, allowed)
    return fd


def restrict(fd: int) -> None:
    """Put this process, and what it starts from now on, under a ruleset. Needs no_new_privs."""
    _call("landlock_restrict_self", _RESTRICT, ctypes.c_int(fd), ctypes.c_uint(0))


def without(place: str, hidden: Iterable[str]) -> list[str]:
    """Paths that together are ``place`` but for the folders ``hidden`` below it: rules can only allow."""
    inside = [path for path in hidden if path == place or path.startswith(place.rstrip("/") + "/")]
    if place in inside:
        return []
    if not inside:
        return [place]
    return [path for name in sorted(os.listdir(place)) for path in without(f"{place.rstrip('/')}/{name}", inside)]


def _add(fd: int, path: str, allowed: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        kind = os.fstat(place).st_mode
        if stat.S_ISLNK(kind):
            return  # what it leads to has a rule of its own, or none
        if not stat.S_ISDIR(kind):
            allowed &= _OF_A_FILE
        rule = struct.pack("=Qi", allowed, place)
        _call(f"landlock_add_rule {path}", _ADD, ctypes.c_int(fd), ctypes.c_int(_BENEATH), rule, ctypes.c_uint(0))
    finally:
        os.close(place)


def _call(name: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        hint = (
            " (Landlock is not in this kernel, or not switched on)" if code in (errno.ENOSYS, errno.EOPNOTSUPP) else ""
        )
        raise OSError(code, f"{name}: {os.strerror(code)}{hint}")
    return result
