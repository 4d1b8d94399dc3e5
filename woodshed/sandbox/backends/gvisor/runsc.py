"""Finds the program ``runsc``, and writes the OCI configuration of a box: its program and the host folders it sees."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Any

from woodshed.record.cache import cache_directory
from woodshed.sandbox.guest.template import HOME
from woodshed.sandbox.host.payload import CAPABILITIES, boot

_HOW = (
    "run `scripts/install-runsc` (Debian, no root needed), or `apt-get install runsc` (Debian 13; on 12 from "
    "bookworm-backports), or set WOODSHED_RUNSC to its path"
)
_OLDEST = 20230000


class Missing(Exception):
    """There is no usable ``runsc``; the message says what to do."""


@lru_cache(maxsize=4)
def find_runsc() -> str:
    """Find a ``runsc`` that can checkpoint a box and leave it running (2023 or newer). Raises Missing."""
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
        raise Missing(f"{path} is of {dated.group(1)}: it cannot snapshot a box and leave it running; {_HOW}")
    return os.path.realpath(path)


# Path where the box's user may write ("": the workdir) -> divisor of the disk limit: each path has a tmpfs of its own.
_SHARES = {"": 1, "/tmp": 4, "/var/tmp": 16, HOME: 16, "/dev/shm": 8}


def configuration(spec: dict[str, Any], root: str, binds: list[tuple[str, str]]) -> str:
    """Return the text of ``config.json``. ``spec`` is the create message, ``binds`` are (source, path in the box)."""
    places = {place or spec["workdir"]: share for place, share in _SHARES.items()}
    mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    for source, target in binds:
        mounts.append({"destination": f"/{target}", "type": "bind", "source": source, "options": ["ro", "rbind"]})
    for place, share in places.items():
        options = [] if spec["disk"] is None else [f"size={max(1 << 20, spec['disk'] // share)}"]
        mounts.append({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": options})
    guest = {key: spec[key] for key in ("env", "preload", "memory", "cpu", "file_size", "workdir", "listen")}
    guest["places"] = list(places)
    capabilities = [f"CAP_{name}" for name in CAPABILITIES]
    limits = {"RLIMIT_NOFILE": 4096} | ({"RLIMIT_NPROC": spec["processes"] + 2} if spec["processes"] else {})
    return json.dumps(
        {
            "ociVersion": "1.0.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [os.path.realpath(sys.executable), "-I", "-S", "-c", boot("machine"), json.dumps(guest)],
                "env": ["PATH=/usr/bin:/bin", "LANG=C.UTF-8"],
                "cwd": "/",
                "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted")},
                "rlimits": [{"type": name, "hard": value, "soft": value} for name, value in limits.items()],
            },
            "root": {"path": root},
            "hostname": "box",
            "mounts": mounts,
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
        }
    )
