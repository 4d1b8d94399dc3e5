"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of the address ``host`` that nobody has now, each another one."""
    held = [socket.create_server((host, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
