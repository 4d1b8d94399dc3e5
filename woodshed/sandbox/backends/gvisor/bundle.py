"""The OCI bundle of a box: what ``runsc`` is told to run, and which parts of the host it may read."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from woodshed.sandbox.guest.template import HOME
from woodshed.sandbox.host.payload import CAPABILITIES, boot

# Places where the box's user may write, and the share of its disk that each may take: a size binds one mount only.
_SHARES = {"": 1, "/tmp": 4, "/var/tmp": 16, HOME: 16, "/dev/shm": 8}


def configuration(spec: dict[str, Any], root: str, binds: list[tuple[str, str]]) -> str:
    """``config.json``. ``spec`` is the create message, ``binds`` are (source, path in the box)."""
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
    return json.dumps({
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
    })  # fmt: skip
