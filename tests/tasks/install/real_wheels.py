"""Real wheels of the index that pip is configured with, for tests whose point is a real program."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

_ENVIRONMENT = dict(os.environ)  # with the index of this machine, before a fixture names another


def wheels(folder: Path, *names: str) -> list[Path]:
    """The wheels, in ``folder``; skips where one cannot be had."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    done = subprocess.run([*command, *names], env=_ENVIRONMENT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no wheel of {' or '.join(names)} for this interpreter is to be had: {done.stderr[-300:]}")
    return sorted(folder.glob("*.whl"))


def add_to_index(root: Path, found: Iterable[Path]) -> None:
    """Have the file index below ``root`` serve them."""
    for path in found:
        page = root / "simple" / path.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True, exist_ok=True)
        (page / path.name).symlink_to(path)
        (page / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>\n')
