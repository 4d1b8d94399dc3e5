"""Which Woodshed is installed here: programs that are placed on other machines have to be of the same one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import woodshed

PACKAGE = Path(woodshed.__file__).parent


class OtherSource(Exception):
    """A machine has another Woodshed than the run, or none."""


def source() -> str:
    """Version, and the first digits of a sha256 over names and contents of every Python file of the package."""
    sha = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, data = os.fsencode(path.relative_to(PACKAGE)), path.read_bytes()
        sha.update(b"%d:%s%d:" % (len(name), name, len(data)) + data)
    return f"{woodshed.__version__} ({sha.hexdigest()[:12]})"


def check_source(wanted: str) -> None:
    """Raises OtherSource where ``wanted`` (of ``source``, on another machine) is not what is installed here."""
    if (here := source()) != wanted:
        raise OtherSource(f"woodshed {here} is installed there, and this run is {wanted}: install the same everywhere")
