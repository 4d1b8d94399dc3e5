"""Small file systems that fill up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own at ``place``."""

    place: Path

    def resize(self, kib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={kib}k", self.place], check=True)


@contextmanager
def small_disk(place: Path, *, kib: int) -> Iterator[SmallDisk]:
    """Mount one at ``place``; skips the test where that cannot be done."""
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "small", place], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", place], check=True)
