"""Listing of folders that raises instead of skipping what it cannot read."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def all_below(folder: Path, skip: Collection[str] = ()) -> list[Path]:
    """List everything below ``folder``, sorted; links are listed but not followed, folders named in ``skip`` left out.

    Raises OSError if a folder cannot be read. From Python 3.12 on, ``Path.rglob`` silently skips such folders, so that
    on a machine without free file descriptors a task would have no tests and a layer no files.
    """

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    for top, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if name not in skip]
        found += (Path(top, name) for name in (*folders, *files))
    return sorted(found)
