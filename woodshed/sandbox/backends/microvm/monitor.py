"""QEMU's control socket: one JSON object a line, a command at a time (QMP)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from woodshed.sandbox.protocol import SandboxError

_LONGEST = 1 << 20
_SECONDS = 60.0
_FAULTS = (OSError, ValueError, RecursionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Monitor:
    """Connects when it is first used. What QEMU says is bounded and checked: a guest may have taken it over."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def execute(self, command: str, **arguments: Any) -> None:
        """Raises SandboxError with what QEMU says."""
        try:
            await asyncio.wait_for(self._execute(command, arguments), _SECONDS)
        except _FAULTS as error:
            raise SandboxError(f"qemu does not answer {command!r}: {error or type(error).__name__}") from None

    async def _execute(self, command: str, arguments: dict[str, Any]) -> None:
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._socket, limit=_LONGEST)
            await self._streams[0].readuntil()  # its greeting
            await self._ask("qmp_capabilities", {})
        await self._ask(command, arguments)

    async def _ask(self, command: str, arguments: dict[str, Any]) -> None:
        assert self._streams is not None
        reader, writer = self._streams
        writer.write(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(await reader.readuntil())
            if not isinstance(answer, dict):
                raise ValueError("not an object")
            if "error" in answer:
                raise SandboxError(f"qemu refuses {command!r}: {str(answer['error'])[:500]}")
            if "return" in answer:
                return  # all else are events

    def close(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._streams[1].transport.abort()
        self._socket.close()
