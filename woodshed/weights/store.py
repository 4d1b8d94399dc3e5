"""Stores of chains: named objects that appear whole or not at all, in a folder or any S3-compatible bucket."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Protocol

from woodshed.record.atomic import create_whole, write_whole

from .errors import ChainError


class Store(Protocol):
    """Objects by key (``v000012/manifest.json``). Failures that are worth a retry are OSError."""

    url: str
    """Address of the store, a path or ``s3://bucket/prefix``; errors begin with it."""

    def listing(self, *, after: str = "") -> list[str]:
        """Return the keys above ``after`` in byte order, sorted; empty if nothing was ever written."""

    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises FileNotFoundError if there is no such object."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object: readers see the old bytes or the new ones. It is durable when this returns."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object that does not exist yet. Return False if one with other bytes exists. If several callers do
        this at the same time with different bytes, one gets True."""

    def delete(self, key: str) -> None:
        """Remove an object, or with a trailing slash everything below; a missing object is no error."""


class FolderStore:
    """Objects as files. ``fsync`` flushes each before it becomes visible, so that it also survives a power cut."""

    def __init__(self, folder: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self.folder, self.fsync = Path(folder), fsync
        self.url = str(self.folder)

    def listing(self, *, after: str = "") -> list[str]:
        found: list[str] = []
        top = after.partition("/")[0]
        for name in _names(self.folder):
            if name >= top:
                found.extend(f"{name}/{file}" for file in _names(self.folder / name))
        return sorted(key for key in found if key > after)

    def get(self, key: str) -> bytes:
        try:
            return _read_regular(self._own(key))
        except NotADirectoryError:
            raise FileNotFoundError(f"{self.folder / key} does not exist") from None

    def put(self, key: str, data: bytes) -> None:
        path = self._own(key)
        write_whole(path, data, fsync=self.fsync)
        self._sync(path)

    def create(self, key: str, data: bytes) -> bool:
        path = self._own(key)
        if not create_whole(path, data, fsync=self.fsync):
            return self.get(key) == data
        self._sync(path)
        return True

    def delete(self, key: str) -> None:
        path = self._own(key)
        if key.endswith("/"):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def _own(self, key: str) -> Path:
        """Return the path of an object. Raises ChainError if its folder is a symbolic link, which could lead out of the
        chain."""
        path = self.folder / key.rstrip("/")
        folder = path if key.endswith("/") else path.parent
        if folder != self.folder and folder.is_symlink():
            raise ChainError(f"{folder}: a symbolic link; the folders of a chain must be real folders")
        return path

    def _sync(self, path: Path) -> None:
        if self.fsync:
            for folder in (path.parent, self.folder):
                _sync(folder)


def open_store(where: str | os.PathLike[str] | Store, *, fsync: bool = True) -> Store:
    """Open a folder by its path or a bucket by ``s3://bucket/prefix`` (needs the extra ``s3``); return a store itself.

    Raises ChainError if the URL is of another kind or the extra is not installed.
    """
    if not isinstance(where, (str, os.PathLike)):
        return where
    text = os.fspath(where)
    if text.startswith("s3://"):
        from .s3 import BucketStore

        return BucketStore(text)
    if "://" in text:
        raise ChainError(f"{text}: a weight chain must be a folder or s3://bucket/prefix")
    return FolderStore(text, fsync=fsync)


def _names(folder: Path) -> list[str]:
    """List a folder without files that are still being written, whose names begin with a dot."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_regular(path: Path) -> bytes:
    """Read a regular file. Raises ChainError for a FIFO, a socket, a device or a link, which may block the reader or
    lead elsewhere."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise ChainError(f"{path}: a symbolic link; the files of a chain must be regular files")
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ChainError(f"{path}: not a regular file")
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ChainError(f"{path}: not a regular file")
        return file.read()


def _sync(folder: Path) -> None:
    """Make renames inside a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
