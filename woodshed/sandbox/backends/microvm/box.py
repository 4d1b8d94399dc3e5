"""A virtual machine as the host sees it: the agent's channel, and QEMU's control socket for snapshots."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.kept import KeptBackend, KeptBox
from woodshed.sandbox.protocol import BoxSpec

from .monitor import Monitor


class MicrovmBox(KeptBox):
    def __init__(
        self, backend: KeptBackend[Any], spec: BoxSpec, number: int, channel: Channel, monitor: Monitor
    ) -> None:
        super().__init__(backend, spec, number, channel)
        self._monitor = monitor

    async def save(self, state: str, memory: Callable[[], Awaitable[int]]) -> int:
        """Stop, have ``memory`` copied and the devices' state written to the file ``state``; go on."""
        self.channel.hold()
        try:
            try:
                await self.channel.request({"op": "freeze"})
                try:
                    await self._monitor.execute("stop")
                    size = await memory()
                    await self._write(state)
                finally:
                    await self._monitor.execute("cont")
            finally:
                await self.thaw()  # also where we were cancelled: the agent waits for it
        finally:
            self.channel.resume()
        return size

    async def stop_for_good(self, state: str) -> None:
        """Stop with memory as it is and the devices' state in the file ``state``."""
        await self.channel.request({"op": "freeze"})
        await self._monitor.execute("stop")
        await self._write(state)

    async def _write(self, state: str) -> None:
        """The command is named after Xen, which keeps memory itself as we do.

        What it writes is what a machine that is started with ``-incoming`` reads, but for the memory.
        """
        await self._monitor.execute("xen-save-devices-state", filename=state, live=False)

    async def thaw(self, env: Mapping[str, str] | None = None) -> None:
        """Let the agent go on, at the time that it is, with randomness of its own; ``env`` joins its environment."""
        seed = secrets.token_hex(32)
        await self.channel.request({"op": "thaw", "time": time.time(), "seed": seed, "env": dict(env or {})})

    def hang_up(self) -> None:
        super().hang_up()
        self._monitor.close()
