"""File operations of PID 1, with the permissions of the box's ordinary user.

PID 1 holds no capability over files, so the user's permissions apply. Two dangers remain: links that the kernel
resolves for the *reader* (``/proc/self/...``), and files whose opening or reading never ends. Magic links are refused
while the path is walked, and only regular files outside procfs are read or written.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache

from . import kernel

_AT_FDCWD = -100
_BENEATH = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS
_MAX_ENTRIES = 200_000
_MAX_SECONDS = 10.0
_MAX_PATH = 1024
_LEFT_OUT = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.ELOOP,
        errno.EXDEV,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENAMETOOLONG,
        errno.EAGAIN,
        errno.ESTALE,
    }
)
"""Errors of an entry that is unreadable or was replaced since it was listed; it is left out. Any other error ends
``collect``: a file that is missing because descriptors ran out must not count as not submitted."""


def read(path: str, max_bytes: int) -> bytes:
    """Read the first ``max_bytes`` bytes of a regular file."""
    fd = _open(path, os.O_RDONLY)
    try:
        return _read_all(fd, max_bytes)
    finally:
        os.close(fd)


def write(path: str, data: bytes) -> None:
    """Replace the file's contents, making parent folders. A new file that starts with ``#!`` is executable."""
    mode = 0o755 if data[:2] == b"#!" else 0o644
    try:
        fd = _open(path, os.O_WRONLY | os.O_CREAT, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = _open(path, os.O_WRONLY | os.O_CREAT, mode)
    try:
        os.ftruncate(fd, 0)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def delete(path: str) -> None:
    """Remove a file, a link or a whole folder. Raises EFBIG for a tree that takes too long; the rest of it stays."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        _remove_tree(path)
    else:
        os.unlink(path)


class _Work:
    """Bounds the cost of walking a tree: entries, and seconds of this process's processor time, which do not depend on
    how busy the machine is. ``entry`` and ``clock`` raise EFBIG beyond the bounds."""

    def __init__(self) -> None:
        self._entries = 0
        self._until = time.process_time() + _MAX_SECONDS

    def entry(self) -> None:
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"the tree has over {_MAX_ENTRIES} entries")
        if self._entries % 64 == 0:
            self.clock()

    def clock(self) -> None:
        if time.process_time() > self._until:
            raise OSError(errno.EFBIG, f"the tree takes over {_MAX_SECONDS:g} s of processor time")


def listing(path: str, recursive: bool, limit: int) -> list[tuple[str, str, int]]:
    """List (relative path, kind, size) of the first ``limit`` entries met, sorted; links are listed, not followed.

    Raises EFBIG for a tree that takes too long to read."""
    found: list[tuple[str, str, int]] = []
    pending = [""]
    work = _Work()
    while pending and len(found) < limit:
        folder = pending.pop()
        try:
            with os.scandir(os.path.join(path, folder)) as entries:
                rows = sorted(_counted(entries, work), key=lambda e: e.name)
        except OSError as error:
            if not folder or error.errno == errno.EFBIG:
                raise
            continue
        for entry in rows:
            name = folder + entry.name
            try:
                found.append((name, _kind(entry), entry.stat(follow_symlinks=False).st_size))
            except OSError:  # removed meanwhile, or the path is too long
                continue
            if recursive and entry.is_dir(follow_symlinks=False):
                pending.append(name + "/")
            if len(found) >= limit:
                break
    return sorted(found)


def _counted(entries: Iterable[os.DirEntry[str]], work: _Work) -> Iterator[os.DirEntry[str]]:
    for entry in entries:
        work.entry()
        yield entry


def collect(root: str, patterns: list[str], max_bytes: int) -> list[tuple[str, bytes]]:
    """Read the regular files below ``root`` that match a glob; no link is followed anywhere.

    Raises EFBIG over ``max_bytes``, and for a tree that takes too long to read. Paths of over 1,024 bytes are left out:
    no submission accepts them, and the kernel walks the whole path again for every entry.
    """
    match = re.compile("|".join(_translate(p) for p in patterns)).fullmatch
    deep = any("**" in p for p in patterns)
    depth = max((p.count("/") for p in patterns), default=0)
    out: list[tuple[str, bytes]] = []
    budget = max_bytes
    work = _Work()
    base = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        pending = [""]
        while pending:
            folder = pending.pop()
            try:
                fd = kernel.openat2(
                    base, folder.rstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK, 0, _BENEATH
                )
            except OSError as error:
                if not folder or error.errno not in _LEFT_OUT:
                    raise
                continue
            try:
                with os.scandir(fd) as entries:
                    for entry in _counted(entries, work):
                        name = folder + entry.name
                        if len(os.fsencode(name)) > _MAX_PATH:
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            if deep or name.count("/") < depth:
                                pending.append(name + "/")
                        elif entry.is_file(follow_symlinks=False) and match(name):
                            data = _collect_one(base, name, budget)
                            if data is not None:
                                budget -= len(data)
                                out.append((name, data))
            finally:
                os.close(fd)
    finally:
        os.close(base)
    return sorted(out)


def _collect_one(base: int, name: str, budget: int) -> bytes | None:
    try:
        fd = kernel.openat2(base, name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, 0, _BENEATH)
    except OSError as error:
        if error.errno not in _LEFT_OUT:
            raise
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or kernel.filesystem(fd) == kernel.PROC_MAGIC:
            return None
        data = _read_all(fd, budget + 1)
    finally:
        os.close(fd)
    if len(data) > budget:
        raise OSError(errno.EFBIG, "the files that match are larger than max_bytes", name)
    return data


def _open(path: str, flags: int, mode: int = 0) -> int:
    """Open a regular file. Raises PermissionError for devices, pipes, sockets and procfs."""
    flags |= os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = kernel.openat2(_AT_FDCWD, path, flags, mode, kernel.RESOLVE_NO_MAGICLINKS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EXDEV):
            raise PermissionError(errno.EACCES, "not a regular file", path) from None
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind) and kernel.filesystem(fd) != kernel.PROC_MAGIC:
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise PermissionError(errno.EACCES, "not a regular file", path)


def _read_all(fd: int, limit: int) -> bytes:
    chunks, left = [], limit
    while left > 0:
        chunk = os.read(fd, min(left, 1 << 20))
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _remove_tree(path: str) -> None:
    work = _Work()
    folders = [path]  # every parent before its children
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in _counted(entries, work):
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    os.unlink(entry.path)
    for folder in reversed(folders):
        work.clock()
        os.rmdir(folder)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "dir"
    return "file" if entry.is_file(follow_symlinks=False) else "other"


@lru_cache(256)
def _translate(pattern: str) -> str:
    """Translate a glob to a regular expression: ``*`` and ``?`` stay within a folder, ``**/`` crosses any number."""
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2)
            inner = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out, at = out + "[" + ("^" + inner[1:] if inner[0] == "!" else inner) + "]", end + 1
        else:
            char = pattern[at]
            out, at = out + {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)), at + 1
    return f"(?s:{out})"
