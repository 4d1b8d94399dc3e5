"""The first process of a virtual machine: ``machine.Guest`` over its port to the host, with freeze and thaw for forks.

Before a snapshot it is asked to freeze: it answers and then waits, so that no frame is half sent when memory is copied.
The machine itself and every fork are then thawed with the current time and fresh randomness.
"""

from __future__ import annotations

import fcntl
import os
import resource
import struct
import sys
import time
from typing import Any

from .frames import Decoder
from .machine import IN, Guest, serve, take_over

_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207


class VmGuest(Guest):
    def _handle(self, request: dict[str, Any], body: bytes) -> None:
        if request["op"] != "freeze":
            super()._handle(request, body)
            return
        self._reply({"id": request["id"]})
        thaw, _ = next_frame()
        set_clock_and_seed(float(thaw["time"]), bytes.fromhex(thaw["seed"]))
        os.environ.update(thaw["env"])
        self._spec["environment"].update(thaw["env"])
        self._reply({"id": thaw["id"]})


def next_frame() -> tuple[dict[str, Any], bytes]:
    """Read exactly one frame; the host sends no other before its answer."""
    decoder = Decoder()
    while True:
        data = os.read(IN, 1 << 18)
        if not data:
            sys.exit("the host hung up")
        for frame in decoder.feed(data):
            return frame


def set_clock_and_seed(now: float, seed: bytes) -> None:
    """Set the clock (seconds since 1970) and mix ``seed`` into the kernel's randomness."""
    time.clock_settime(time.CLOCK_REALTIME, now)
    fd = os.open("/dev/urandom", os.O_WRONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _RNDADDENTROPY, struct.pack("=ii", 8 * len(seed), len(seed)) + seed)
        fcntl.ioctl(fd, _RNDRESEEDCRNG)
    finally:
        os.close(fd)


def main() -> None:
    """Entry point: standard input and output are the port; the first request on it holds the specification."""
    take_over()
    request, _ = next_frame()
    spec = request["spec"]
    os.makedirs(spec["workdir"], exist_ok=True)
    if spec["processes"] is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (spec["processes"] + 2,) * 2)
    serve(spec, VmGuest, request["id"])
