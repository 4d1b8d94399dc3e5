"""Finds gVisor's program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import lru_cache

from woodshed.record.cache import cache_directory

_HOW = (
    "run `scripts/install-runsc` (Debian, no root needed), or `apt-get install runsc` (Debian 13; on 12 from "
    "bookworm-backports), or set WOODSHED_RUNSC to its path"
)
_OLDEST = 20230000


class Missing(Exception):
    """There is no usable ``runsc``; the message says what to do."""


@lru_cache(maxsize=4)
def find_runsc() -> str:
    """Path of a ``runsc`` that can checkpoint a box and leave it running (2023 or newer). Raises Missing."""
    fetched = cache_directory() / "bin" / "runsc"
    path = os.environ.get("WOODSHED_RUNSC") or shutil.which("runsc") or (str(fetched) if fetched.exists() else None)
    if path is None:
        raise Missing(f"runsc is not on the path; {_HOW}")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"{path} does not run: {error}; {_HOW}") from None
    dated = re.search(r"\b(20\d{6})\b", done.stdout)
    if dated and int(dated.group(1)) < _OLDEST:
        raise Missing(f"{path} is of {dated.group(1)}: it cannot snapshot a box that goes on; {_HOW}")
    return os.path.realpath(path)
