"""The first process of a box with a kernel of its own or in a container: ``agent`` over two pipes instead of a socket.

It is root inside, with the capabilities that it needs to become the box's ordinary user, and has no rights on the host.
Commands and file operations run as that user. This folder is copied into the box as the package ``box``.
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

from . import frames, kernel, pyrun, seccomp
from .agent import Agent
from .machine_net import Connections
from .processes import memory, processes
from .template import HOME, UID, command_path, search_path

IN, _OUT = 16, 17
_BECOME_USER = [
    f"--reuid={UID}",
    f"--regid={UID}",
    "--clear-groups",
    "--bounding-set=-all",
    "--inh-caps=-all",
    "--no-new-privs",
    "--",
]


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
        self._control = Pipes(IN, _OUT)  # type: ignore[assignment]
        self._spec, self._events = spec, None
        self._jobs, self._fds = {}, {}
        self._poll = select.poll()
        self._poll.register(IN, select.POLLIN)
        self._decoder = frames.Decoder()
        self._network = Connections(spec.get("listen", ()), self._poll, self._reply)
        self._quiet = False
        self._populated, self._checked, self._paused = False, 0.0, None
        self._stopped, self._open, self._turns = set(), False, None

    def _handle(self, request: dict[str, Any], body: bytes) -> None:
        if request.get("op") == "net":
            self._network.take(request, body)
        else:
            super()._handle(request, body)

    def _progress(self, fd: int) -> None:
        if not self._quiet and not self._network.ready(fd):
            super()._progress(fd)

    def _wait_ms(self) -> float | None:
        if self._quiet:  # send nothing until the host does: a fork would send the rest of a frame again
            select.select([IN], [], [])
            self._quiet = False
        return super()._wait_ms()

    def _operate(self, request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if request["op"] == "reset":  # a fork of a files-only snapshot
            self._stop_everything()
            return {}, b""
        if request["op"] == "quiet":
            self._quiet = True
            return {}, b""
        with _as_user():
            return super()._operate(request, body)

    def _freeze(self) -> None:
        """Stop processes only if the host's kernel runs them; a box with its own kernel is paused from outside."""
        if self._spec.get("hosts_kernel"):
            super()._freeze()

    def _thaw(self) -> None:
        if self._spec.get("hosts_kernel"):
            super()._thaw()

    def _keep_stopped(self, now: float) -> None:
        if self._spec.get("hosts_kernel"):
            super()._keep_stopped(now)

    def _seal_upper(self) -> dict[str, Any]:
        raise ValueError("this box is snapshot from outside")

    def _stats(self) -> dict[str, Any]:
        used = {os.stat(place).st_dev: os.statvfs(place) for place in self._spec["places"]}
        disk = sum((u.f_blocks - u.f_bfree) * u.f_frsize for u in used.values())
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
    """Entry point: ``sys.argv[1]`` is the specification; standard input and output lead to the host.

    Keys for containers: ``setpriv``, command of that program there; ``image``, keep the environment and the file owners
    of the image; ``hosts_kernel``, install the boxes' system-call filter, as the host's kernel serves them.
    """
    take_over()
    serve(json.loads(sys.argv[1]), Guest)


def take_over() -> None:
    """Move the host's pipes from standard input and output to descriptors that no command inherits."""
    for fd, number in ((0, IN), (1, _OUT)):
        os.dup2(fd, number, inheritable=False)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.umask(0o022)


def serve(spec: dict[str, Any], kind: type[Guest], request: int | None = None) -> None:
    """Become the agent that ``spec`` describes and serve until the host hangs up; first answer ``request``, if any."""
    for place in spec["places"]:
        _give(place, everything=spec.get("image", False))
    environment = {
        "PATH": spec.get("path") or command_path(),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(os.environ if spec.get("image") else {}),
        "HOME": HOME,
        **spec["env"],
    }
    os.environ.clear()
    os.environ.update(environment)
    for name in spec["preload"]:
        importlib.import_module(name)
    pyrun.prepare_streams()
    spec |= {"environment": environment, "finders": pyrun.prepare(search_path())}
    spec |= {"prefix": [*spec.get("setpriv", ["/usr/bin/setpriv"]), *_BECOME_USER], "user": UID}
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {
        "RLIMIT_AS": spec["memory"],
        "RLIMIT_FSIZE": spec["file_size"],
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 4096 if files == resource.RLIM_INFINITY else min(4096, files),
    }
    for name, limit in limits.items():
        if limit is not None:
            resource.setrlimit(getattr(resource, name), (limit, limit))
    if spec.get("hosts_kernel"):
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.install_seccomp(seccomp.box_filter(kernel.MACHINE))
    agent = kind(spec)
    if request is not None:
        agent._reply({"id": request})
    agent.serve()


def _give(place: str, *, everything: bool) -> None:
    """Give a folder to the user, with ``everything`` also its contents; called before any command runs."""
    os.makedirs(place, exist_ok=True)
    os.chown(place, UID, UID)
    for folder, folders, files in os.walk(place) if everything else ():
        for name in (*folders, *files):
            os.lchown(f"{folder}/{name}", UID, UID)
