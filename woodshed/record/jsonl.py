"""Append-only files of JSON lines."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any, BinaryIO


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a file. Ignores lines that are not JSON objects, such as one that a kill cut short."""
    try:
        return _parse(path.read_text(errors="replace"))
    except FileNotFoundError:
        return []


def _parse(text: str) -> list[dict[str, Any]]:
    rows = []
    for line in text.splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


class GrowingRows:
    """The rows of a file that another process appends to; each call reads only what was added since the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Return all complete rows so far; begins anew if the file has become shorter. The list is not a copy."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self._offset:
            self._offset, self._rows = 0, []
        if size > self._offset:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
            complete = added[: added.rfind(b"\n") + 1]
            self._offset += len(complete)
            self._rows += _parse(complete.decode(errors="replace"))
        return self._rows


class JsonLines:
    """Appends rows to ``path``, whose folder is created. Opening it removes a last row that a kill cut short.

    Several processes may do both at the same time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), path.open("rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # else a row that comes meanwhile would be removed
            file.truncate(_end_of_rows(file))

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path)

    def append(self, row: dict[str, Any]) -> None:
        """Append a row. Raises OSError if it cannot be written whole; nothing of it is left in the file then."""
        data = (json.dumps(row) + "\n").encode()
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if (written := os.write(fd, data)) < len(data):  # the disk is full
                os.ftruncate(fd, os.fstat(fd).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        finally:
            os.close(fd)


def _end_of_rows(file: BinaryIO, block: int = 1 << 16) -> int:
    """Return the offset at which the last complete line ends, searched from the end because the file may be long."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - block)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
