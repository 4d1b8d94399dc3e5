"""The first process of a box that has a kernel of its own: ``agent`` over two pipes instead of a socket.

It is root there, with the capabilities that it needs to become the box's ordinary user, and nothing on the host.
Commands and file operations run as that user. A copy of this module and of those it imports lies in the box as package
``box``.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import frames, pyrun
from .agent import Agent
from .jobs import memory, processes
from .template import HOME, UID, search_path

_IN, _OUT = 16, 17
_BECOME_USER = [
    "/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
    "--no-new-privs", "--",
]  # fmt: skip


class Pipes:
    """Two pipes with the methods of a socket that ``Agent`` uses."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink

    def fileno(self) -> int:
        return self._source

    def recv(self, size: int) -> bytes:
        return os.read(self._source, size)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._sink, view) :]


class Guest(Agent):
    def __init__(self, spec: dict[str, Any]) -> None:
        self._control = Pipes(_IN, _OUT)  # type: ignore[assignment]
        self._spec = spec
        self._jobs, self._fds = {}, {}
        self._poll = select.poll()
        self._poll.register(_IN, select.POLLIN)
        self._decoder = frames.Decoder()
        self._populated, self._checked = False, 0.0

    def _operate(self, request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if request["op"] == "reset":  # a fork of the files alone
            self._stop_everything()
            return {}, b""
        with _as_user():
            return super()._operate(request, body)

    def _seal_upper(self, token: str) -> dict[str, Any]:
        raise ValueError("this box is snapshot from outside")

    def _stats(self) -> dict[str, Any]:
        used = [os.statvfs(place) for place in self._spec["places"]]
        disk = sum((u.f_blocks - u.f_bfree) * u.f_frsize for u in used)
        return {"processes": len(processes()), "memory": memory(), "disk": disk}


@contextmanager
def _as_user() -> Iterator[None]:
    os.setegid(UID)
    os.seteuid(UID)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def main() -> None:
    """``sys.argv[1]`` is the specification; standard input and output lead to the host."""
    spec = json.loads(sys.argv[1])
    for fd, number in ((0, _IN), (1, _OUT)):
        os.dup2(fd, number, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.umask(0o022)
    for place in spec["places"]:
        os.chown(place, UID, UID)
    environment = {
        "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1", **spec["env"],
    }  # fmt: skip
    os.environ.clear()
    os.environ.update(environment)
    for name in spec["preload"]:
        importlib.import_module(name)
    pyrun.prepare_streams()
    spec |= {"environment": environment, "finders": pyrun.prepare(search_path())}
    spec |= {"prefix": _BECOME_USER, "user": UID}
    for name, limit in (("RLIMIT_AS", spec["memory"]), ("RLIMIT_FSIZE", spec["file_size"]), ("RLIMIT_CORE", 0)):
        if limit is not None:
            resource.setrlimit(getattr(resource, name), (limit, limit))
    Guest(spec).serve()
