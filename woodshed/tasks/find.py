"""Find task directories in folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from woodshed.record.task import TaskError


def task_folders(paths: Iterable[Path]) -> list[Path]:
    """Return the task directories of ``paths``: a path itself, or those up to two levels below it that are not hidden.

    Raises TaskError for a path that is not a folder or holds no task.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise TaskError(f"{path}: no such folder")
        if (path / "task.toml").is_file():
            found[path] = None
            continue
        below = [p.parent for pattern in ("*/task.toml", "*/*/task.toml") for p in path.glob(pattern)]
        shown = sorted(p for p in below if not any(part.startswith(".") for part in p.relative_to(path).parts))
        if not shown:
            raise TaskError(f"{path}: neither a task directory nor a folder of them (no task.toml)")
        found.update(dict.fromkeys(shown))
    return list(found)
