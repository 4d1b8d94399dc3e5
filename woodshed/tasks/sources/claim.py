"""Claim the folder that a build writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from woodshed.record.atomic import locked
from woodshed.tasks.packages.index import PackageError

SOURCES = "sources.toml"
"""Name of the file that locks what the tasks of a folder are made from (``pipeline/lock.py``)."""


@contextmanager
def claim(out: Path, mark: str = "") -> Iterator[None]:
    """Create and lock the folder ``out``. Raises PackageError if another build works in it or if it holds other things.

    Folders in it that hold a file called ``mark`` are part of the build.
    """
    ours = (SOURCES, "sources", "yield.json")
    if out.exists() and not out.is_dir():
        raise PackageError(f"{out} is not a folder; choose another with --out")
    if out.is_dir() and not (out / SOURCES).exists():
        strange = [
            p.name
            for p in out.iterdir()
            if not p.name.startswith(".") and p.name not in ours and not (mark and (p / mark).is_file())
        ]
        if strange:
            raise PackageError(f"{out} holds other things ({strange[0]}); choose another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    busy = PackageError(f"another build works in {out}; wait for it, or choose another folder with --out")
    with locked(out, busy):
        yield
