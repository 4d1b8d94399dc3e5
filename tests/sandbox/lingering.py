"""A helper process whose child outlives it and holds all its descriptors; the child ends with the file ``living``."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from woodshed.sandbox.host.owner import Owner


def main(host: socket.socket) -> None:
    owner = Owner(host)
    dies_at, living = owner.configuration["dies_at"], owner.configuration["living"]

    def leave() -> None:
        if os.fork() == 0:
            while Path(living).exists():
                time.sleep(0.01)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    def handle(message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == dies_at:
            leave()

    if dies_at == "start":
        leave()
    owner.ready(privileged=False)
    owner.serve(handle, lambda pid, status: None)
