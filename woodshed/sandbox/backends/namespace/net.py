"""The network of a box that has one: a loopback device of its own, and listening sockets that the host serves.

The box's network namespace has no other device and no route. PID 1 listens on ports of 127.0.0.1 and hands the
listening sockets to the host, which accepts their connections: a socket stays in the namespace it was made in, whoever
holds it. So the box needs no forwarding process, and it reaches only what the host serves.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Sequence

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_BACKLOG = 64


def offer(ports: Sequence[int] | None, host: int) -> None:
    """Listen on ``ports``, send the sockets over the descriptor ``host`` and close it.

    Needs CAP_NET_ADMIN over the namespace. If ``ports`` is None, there are no sockets and the loopback stays down.
    """
    listeners = []
    if ports is not None:
        _loopback_up()
    for port in ports or ():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
        listeners.append(listener)
    with socket.socket(fileno=host) as channel:
        if listeners:
            socket.send_fds(channel, [b"listening"], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = fcntl.ioctl(probe, _SIOCGIFFLAGS, struct.pack("16sh22x", b"lo", 0))
        flags = struct.unpack_from("16sh", request)[1] | _IFF_UP
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags))
