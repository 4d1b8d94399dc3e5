"""An interpreter that the user of landlock boxes can run, where the owner is root and that user is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from ..protocol import Unsupported

_CHECK = "import sys; print(sys.version_info >= (3, 11))"


@lru_cache(maxsize=1)
def find_interpreter() -> str:
    """Path of the running interpreter, else of the system's. Raises Unsupported where boxes can run neither."""
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    if os.geteuid() != 0 or open_to_others(Path(own)):
        return own
    system = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if system is not None:
        done = subprocess.run([system, "-I", "-c", _CHECK], capture_output=True, text=True, check=False)
        if done.stdout.strip() == "True":
            return system
    raise Unsupported(f"landlock: boxes run as an ordinary user, who cannot run {own}; install python3 (3.11) in /usr")


def open_to_others(path: Path) -> bool:
    """Whether every user can get at ``path``."""
    return all(place.stat().st_mode & 0o001 for place in (path, *path.resolve().parents))
