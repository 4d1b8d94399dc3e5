"""The helper process's side of its owner: one sequenced-packet socket, and the children that it has for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

KILLED = "killed from outside"
"""Reported of a box whose first process the machine ended, for want of memory of its own or by an operator."""


class Owner:
    """Messages are JSON objects, one to a packet; the first two are the import path and the configuration."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C goes to the whole group; the owner decides
        self.configuration: dict[str, Any] = json.loads(host.recv(1 << 16))

    def ready(self, *, privileged: bool, cgroups: str = "", users: bool = False) -> None:
        self.send({"ready": True, "privileged": privileged, "cgroups": cgroups, "users": users})

    def failed(self, error: OSError) -> None:
        """Instead of ``ready``."""
        self.send({"error": str(error), "errno": error.errno})

    def send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the owner is gone; the end of file follows
            self._host.send(json.dumps(message).encode())

    def close(self) -> None:
        self._host.close()

    def serve(
        self,
        handle: Callable[[dict[str, Any], list[int]], None],
        ended: Callable[[int, int], None],
        *,
        between: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Until the owner goes away: ``handle(message, descriptors)``, ``ended(pid, wait status)`` of a child.

        ``between`` runs before every wait and says how many milliseconds that may last.
        """
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        poll = select.poll()
        for fd in (self._host.fileno(), wake_in):
            poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(between())}
            if wake_in in ready:
                os.read(wake_in, 4096)
                for pid, status in _ended():
                    ended(pid, status)
            if self._host.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(self._host, 1 << 20, 4)
                if not message:
                    return
                handle(json.loads(message), fds)
                for fd in fds:
                    os.close(fd)


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status
