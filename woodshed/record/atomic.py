"""Files that are there completely or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, data: bytes | str, *, fsync: bool = False) -> None:
    """Write beside ``path`` and rename into place; parent folders are made, a file that was there is replaced.

    Whoever reads sees the old file or the new one, even if this process is killed. With ``fsync`` also after a power
    failure. Where it fails (OSError, say a full disk), nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # of its own for every call: threads of one process may write the same file
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
