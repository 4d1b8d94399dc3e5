"""Files that exist completely or not at all, and folders in which one process works at a time."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, data: bytes | str, *, fsync: bool = False) -> None:
    """Write beside ``path`` and rename into place; create parent folders, replace an existing file.

    Readers see the old file or the new one, even if this process is killed; with ``fsync`` also after a power failure.
    If writing fails (OSError, for example a full disk), nothing is left behind.
    """
    with _written_beside(path, data, fsync) as temporary:
        temporary.replace(path)


def create_whole(path: Path, data: bytes | str, *, fsync: bool = False, mode: int = 0o666) -> bool:
    """Write like ``write_whole`` if ``path`` does not exist; return False if it does. Of several concurrent callers, in
    any processes, exactly one gets True. ``mode``: permissions before the umask."""
    with _written_beside(path, data, fsync, mode) as temporary:
        try:
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
    return True


@contextmanager
def _written_beside(path: Path, data: bytes | str, fsync: bool, mode: int = 0o666) -> Iterator[Path]:
    """Write and yield a temporary file, one per call because threads may write the same path. Remove it if the body
    fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(folder: Path, busy: Exception) -> Iterator[None]:
    """Hold the file ``.lock`` of a folder that exists. Raises ``busy`` if another process holds it."""
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        yield
