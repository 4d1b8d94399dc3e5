"""The helper process's connection to its owner: one sequenced-packet socket, served together with ended children."""

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
"""Reported for a box whose first process was killed by the machine, which ran out of memory, or by an operator."""


class Owner:
    """The owner's socket. Each packet is a JSON object; before them come the import path and the configuration."""

    def __init__(self, host: socket.socket) -> None:
        self._host = host
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C goes to the whole group; the owner decides
        self.configuration: dict[str, Any] = json.loads(host.recv(1 << 16))

    def ready(self, *, privileged: bool, cgroups: str = "", users: bool = False) -> None:
        self.send({"ready": True, "privileged": privileged, "cgroups": cgroups, "users": users})

    def failed(self, error: OSError) -> None:
        """Tell the owner why this process cannot serve; sent instead of ``ready``."""
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
        """Call ``handle(message, descriptors)`` and ``ended(pid, wait status)`` of children until the owner goes away.

        ``between`` runs before every wait and returns how many milliseconds the wait may last.
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
