"""Attempts on files of the host."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable

from .base import Facts, attempt, found, syscall


def _read(path: str, size: int = 1 << 16) -> bytes:
    with open(path, "rb") as file:
        return file.read(size)


@attempt("read a file of the host by its path")
def host_file(facts: Facts) -> object:
    return found(_read(facts["path"]), facts)


@attempt("reach it through the root of PID 1")
def root_of_init(facts: Facts) -> object:
    return found(_read("/proc/1/root" + facts["path"]), facts)


@attempt("reach it upwards from the working folder")
def dot_dot(facts: Facts) -> object:
    return found(_read("../" * 40 + facts["path"].lstrip("/")), facts)


@attempt("reach it through a link")
def symbolic_link(facts: Facts) -> object:
    os.symlink(facts["path"], "to-the-host")
    try:
        return found(_read("to-the-host"), facts)
    finally:
        os.unlink("to-the-host")


@attempt("reach it through a hard link")
def hard_link(facts: Facts) -> object:
    os.link(facts["path"], facts["path"] + ".again")
    try:
        return found(_read(facts["path"] + ".again"), facts)
    finally:
        os.unlink(facts["path"] + ".again")


@attempt("change the times, owner or mode of devices that are the host's own", kernel=True)
def times_of_devices(facts: Facts) -> object:
    return _changed(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))


@attempt("change the times, owner or mode of programs that are the host's own")
def times_of_programs(facts: Facts) -> object:
    return _changed(("/usr/bin/env", "/bin/sh"))


def _changed(paths: Iterable[str]) -> str | None:
    changes: list[tuple[str, Callable[[str], None]]] = [
        ("times", lambda path: os.utime(path, (1, 1))),
        ("times", lambda path: os.utime(path)),
        ("mode", lambda path: os.chmod(path, 0o600)),
        ("owner", lambda path: os.chown(path, os.getuid(), os.getgid())),
        ("attributes", lambda path: os.setxattr(path, "user.mark", b"x")),
    ]
    for path in paths:
        for what, change in changes:
            try:
                change(path)
                return f"{what} of {path}"
            except OSError:
                continue
    return None


@attempt("reach it through the roots and working folders of other processes")
def roots_of_others(facts: Facts) -> object:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd"):
            try:
                if hit := found(_read(f"/proc/{pid}/{link}{facts['path']}"), facts):
                    return f"{hit} through /proc/{pid}/{link}"
            except OSError:
                continue
    return None


@attempt("open a file by a handle made up for the root of a filesystem")
def made_up_handle(facts: Facts) -> object:
    handle = struct.pack("Ii", 8, 1) + struct.pack("QQ", 2, 0)
    mount = os.open("/", os.O_RDONLY)
    return syscall(304, 265, mount, ctypes.create_string_buffer(handle), os.O_RDONLY)


@attempt("make a device node of the host's disk and read it")
def disk_node(facts: Facts) -> object:
    os.mknod("disk", 0o60600, os.makedev(*facts["disk"]))
    try:
        return _read("disk", 512)
    finally:
        os.unlink("disk")


@attempt("read the machine's memory")
def memory_device(facts: Facts) -> object:
    for name in ("mem", "kmem", "port"):
        try:
            os.close(os.open(f"/dev/{name}", os.O_RDWR))
            return f"/dev/{name} opened"
        except FileNotFoundError:
            continue
    return None


@attempt("write where every box reads its programs")
def plant_in_usr(facts: Facts) -> object:
    path = f"/usr/bin/{facts['name']}"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o755))
    os.unlink(path)
    return f"{path} written"


@attempt("write to the interpreter that every box runs")
def plant_in_python(facts: Facts) -> object:
    os.close(os.open(os.__file__, os.O_RDWR))
    return f"{os.__file__} opened for writing"


@attempt("change the program that the kernel runs for a core dump")
def core_pattern(facts: Facts) -> object:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return "opened for writing"


@attempt("trigger the kernel's SysRq commands")
def sysrq(facts: Facts) -> object:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
    return "opened for writing"


@attempt("write to the kernel's settings of devices")
def sys_folder(facts: Facts) -> object:
    for place in ("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/power/state", "/sys/kernel/uevent_helper"):
        try:
            os.close(os.open(place, os.O_WRONLY))
            return f"{place} opened for writing"
        except FileNotFoundError:
            continue
    return None


@attempt("read the kernel's log", kernel=True)
def kernel_log(facts: Facts) -> object:
    buffer = ctypes.create_string_buffer(4096)
    return syscall(103, 116, 3, buffer, 4096)
