"""Covert channels between boxes: names, locks, watches and timestamps of files that both see."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from .base import HELD, check, libc, pair

_DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")]
_PROGRAMS = ["/usr", "/usr/bin", "/usr/bin/env", "/usr/lib", "/bin/sh", "/lib", os.path.realpath(sys.executable)]
_PROGRAMS.append(os.__file__)
_PROC = ["/proc", "/proc/version", "/proc/sys/kernel/ostype", "/proc/filesystems"]
_NAME = "woodshed-pair"
_GETLK, _SETLK, _OFD_SETLK = fcntl.F_GETLK, fcntl.F_SETLK, 37


def _namespaces() -> list[str]:
    return [f"/proc/self/ns/{name}" for name in sorted(os.listdir("/proc/self/ns"))]


def _opened(paths: list[str]) -> dict[str, int]:
    found = {}
    for path in paths:
        try:
            found[path] = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
    return found


def _anonymous_descriptors() -> dict[str, int]:
    poll = select.epoll()
    HELD.append(poll)
    return {"eventfd": os.eventfd(0), "epoll": poll.fileno()}


def _lock(files: dict[str, int]) -> str:
    """Take every kind of lock on the files."""
    held = 0
    record = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
    for fd in files.values():
        HELD.append(fd)
        for lock in (
            lambda fd=fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
            lambda fd=fd: fcntl.fcntl(fd, _SETLK, record),
            lambda fd=fd: fcntl.fcntl(fd, _OFD_SETLK, record),
            lambda fd=fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK),
        ):
            try:
                lock()
                held += 1
            except OSError:
                continue
    return f"{held} locks on {len(files)} files"


def _locked(files: dict[str, int]) -> str:
    """Report which files are locked by others."""
    seen = []
    record = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    for path, fd in files.items():
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(fd, fcntl.LOCK_UN)
        except BlockingIOError:
            seen.append(f"flock {path}")
        except OSError:
            pass
        try:
            kind = struct.unpack("hhqqi4x", fcntl.fcntl(fd, _GETLK, record))[0]
            if kind != fcntl.F_UNLCK:
                seen.append(f"lock {path}")
        except OSError:
            pass
    return ", ".join(seen)


@pair("signal through locks on programs that both see", lambda: _locked(_opened(_PROGRAMS)))
def program_locks() -> object:
    return _lock(_opened(_PROGRAMS))


@pair("signal through locks on devices", lambda: _locked(_opened(_DEVICES)))
def device_locks() -> object:
    return _lock(_opened(_DEVICES))


@pair("signal through locks on files of /proc", lambda: _locked(_opened([*_PROC, *_namespaces()])))
def proc_locks() -> object:
    return _lock(_opened([*_PROC, *_namespaces()]))


@pair("signal through locks on descriptors without a file", lambda: _locked(_anonymous_descriptors()))
def descriptor_locks() -> object:
    return _lock(_anonymous_descriptors())


def _touch_all() -> str:
    """Open, read and run files that both boxes see."""
    for path in (*_DEVICES[:5], *_PROGRAMS):
        if os.path.isdir(path):
            os.listdir(path)
        elif os.path.exists(path):
            with open(path, "rb") as file:
                file.read(16)
    with open("/dev/null", "wb") as file:
        file.write(b"x")
    return f"ended with {subprocess.run(['/usr/bin/env', 'true'], check=False).returncode}"


_seen: list[str] = []
_watched: dict[int, str] = {}


def _events() -> str:
    for instance in HELD:
        if isinstance(instance, int):
            with contextlib.suppress(BlockingIOError):
                _seen.extend(_read_events(os.read(instance, 1 << 16)))
    return ", ".join(sorted(set(_seen)))


def _read_events(data: bytes) -> list[str]:
    paths = []
    while data:
        number, _, _, size = struct.unpack("iIII", data[:16])
        paths.append(_watched[number])
        data = data[16 + size :]
    return paths


def _watch(paths: list[str]) -> str:
    signal.signal(signal.SIGIO, lambda *_: _seen.append("a folder was read"))
    instance = check(libc.inotify_init1(os.O_NONBLOCK))
    HELD.append(instance)
    for path in paths:
        with contextlib.suppress(OSError):
            _watched[check(libc.inotify_add_watch(instance, path.encode(), 0xFFF))] = path
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            HELD.append([folder])
            fcntl.fcntl(folder, fcntl.F_NOTIFY, fcntl.DN_ACCESS | fcntl.DN_MODIFY | fcntl.DN_MULTISHOT)
    with contextlib.suppress(BlockingIOError):
        os.read(instance, 1 << 16)  # discard the events of the folders opened above
    return f"{len(_watched)} watches"


@pair("see by watches which programs others open", _touch_all, _events)
def watched_programs() -> object:
    return _watch([*_PROGRAMS, *_PROC[1:], *_namespaces()])


@pair("see by watches which devices others open", _touch_all, _events)
def watched_devices() -> object:
    return _watch(_DEVICES)


def _times() -> str:
    found = [(path, os.stat(path)) for path in (*_DEVICES, *_PROGRAMS) if os.path.exists(path)]
    return str([(path, status.st_atime_ns, status.st_mtime_ns) for path, status in found])


@pair("signal through timestamps of programs and devices", _times)
def times() -> object:
    return _touch_all()


def _names() -> str:
    seen = [place for place in ("/dev/shm", "/tmp", "/var/tmp") if os.path.exists(f"{place}/{_NAME}")]
    for family, address in ((socket.AF_UNIX, f"\0{_NAME}"), (socket.AF_INET, ("127.0.0.1", 47811))):
        try:
            with socket.socket(family) as own:
                own.settimeout(1)
                own.connect(address)
                seen.append(str(address))
        except OSError:
            continue
    return ", ".join(seen)


@pair("signal through names of files, sockets and ports", _names)
def names() -> object:
    for place in ("/dev/shm", "/tmp", "/var/tmp"):
        Path(f"{place}/{_NAME}").write_text("word")
    for family, address in ((socket.AF_UNIX, f"\0{_NAME}"), (socket.AF_INET, ("127.0.0.1", 47811))):
        try:
            listener = socket.socket(family)
            listener.bind(address)
            listener.listen()
            HELD.append(listener)
        except OSError:
            continue
    return "made them"


def _others() -> str:
    """Report programs that run under the attacker's name."""
    seen = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{_NAME}-runs" in Path(f"/proc/{pid}/cmdline").read_text():
                seen.append("a process")
        except OSError:
            continue
    return ", ".join(seen)


@pair("signal through the name of a process", _others)
def process_names() -> object:
    HELD.append(subprocess.Popen([sys.executable, "-c", f"import time; '{_NAME}-runs'; time.sleep(300)"]))
    time.sleep(0.1)
    return "runs"
