"""Files that are there completely or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, data: bytes | str, *, fsync: bool = False) -> None:
    """Write beside ``path`` and rename into place; parent folders are made, a file that was there is replaced.

    Whoever reads sees the old file or the new one, even if this process is killed. With ``fsync`` also after a power
    failure. Where it fails (OSError, say a full disk), nothing is left behind.
    """
    with _written_beside(path, data, fsync) as temporary:
        temporary.replace(path)


def create_whole(path: Path, data: bytes | str, *, fsync: bool = False, mode: int = 0o666) -> bool:
    """``write_whole`` where nothing is at ``path``; False where something is. Of several that try at the same time, in
    whatever processes, one gets True. ``mode``: permissions, less what the umask takes."""
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
    """A file of its own for every call, because threads may write the same path. Removed where the body fails."""
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
