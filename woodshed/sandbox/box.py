"""A box as the host sees it: requests to its first process. What backends have in common."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import Any

from .channel import Channel
from .frames import FrameError, pack_files, unpack_files
from .protocol import BoxSpec, ExecResult, SandboxError

_PATIENCE = 120.0


class ChannelBox:
    """See ``protocol.Sandbox``; ``snapshot``, ``stats`` and ``close`` are the backends' own."""

    def __init__(self, id: str, spec: BoxSpec, channel: Channel) -> None:
        self.id = id
        self.spec = spec
        self.channel = channel
        self._closed = False
        self._moving = asyncio.Lock()
        self._counts = {"execs": 0, "seconds": 0.0}

    async def exec(
        self, command: str | Sequence[str], *, stdin: bytes = b"", cwd: str | None = None,
        env: Mapping[str, str] | None = None, timeout: float = 60.0, max_output: int = 1 << 20,
    ) -> ExecResult:  # fmt: skip
        """Run a command; a program that does not exist ends with 127, as in a shell."""
        argv = ["/usr/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in a for a in argv):
            raise ValueError("exec: the command is empty or contains a NUL byte")
        request = {
            "op": "exec", "argv": argv, "cwd": cwd, "env": dict(env or {}), "timeout": timeout,
            "max_output": max_output,
        }  # fmt: skip
        return await self._run(request, stdin, timeout)

    async def exec_python(
        self, source: str, *, stdin: bytes = b"", cwd: str | None = None, timeout: float = 10.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:  # fmt: skip
        """As ``python -I -c SOURCE`` without the start-up: the working folder is not on ``sys.path``."""
        code = source.encode("utf-8", "surrogatepass")
        request = {"op": "python", "source": len(code), "cwd": cwd, "timeout": timeout, "max_output": max_output}
        return await self._run(request, code + stdin, timeout)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """The first ``max_bytes`` bytes of a regular file."""
        _, data = await self._ask({"op": "read", "path": path, "max_bytes": max_bytes})
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self.put({path: data})

    async def delete(self, path: str) -> None:
        """Remove a file, a link or a folder with all that it holds."""
        await self._ask({"op": "delete", "path": path})

    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        reply, _ = await self._ask({"op": "list", "path": path, "recursive": recursive, "limit": limit})
        try:
            return [(str(name), str(kind), int(size)) for name, kind, size in reply["entries"]]
        except (KeyError, TypeError, ValueError):
            raise SandboxError(f"{self.id}: malformed listing") from None

    async def put(self, files: Mapping[str, bytes]) -> None:
        table, body = pack_files(list(files.items()))
        await self._ask({"op": "put", "files": table}, body)

    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        """Raises OSError (EFBIG) where the files that match are larger than ``max_bytes`` together."""
        reply, body = await self._ask({"op": "get", "patterns": list(patterns), "max_bytes": max_bytes})
        try:
            return dict(unpack_files(reply.get("files"), body))
        except FrameError as error:
            raise SandboxError(f"{self.id}: {error}") from None

    async def usage(self) -> dict[str, int]:
        """``processes``, ``memory`` and ``disk`` (bytes) of the box now."""
        reply, _ = await self._ask({"op": "stats"})
        return {name: int(reply.get(name, 0)) for name in ("processes", "memory", "disk")}

    async def _run(self, request: dict[str, Any], body: bytes, timeout: float) -> ExecResult:
        try:
            reply, data = await self._ask(request, body, timeout + _PATIENCE)
        except OSError as error:
            # What the box could not start: full of its own processes, or a command that no kernel takes.
            full = error.errno == errno.ENOMEM
            return ExecResult(126, stderr=f"cannot start: {error.strerror}\n".encode(), out_of_memory=full)
        try:
            size = int(reply["out"])
            result = ExecResult(
                int(reply["returncode"]), data[:size], data[size:], bool(reply["timed_out"]), bool(reply["truncated"]),
                bool(reply["out_of_memory"]), float(reply["seconds"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise SandboxError(f"{self.id}: malformed result") from None
        self._counts["execs"] += 1
        self._counts["seconds"] += result.seconds
        return result

    async def _ask(
        self, header: dict[str, Any], body: bytes = b"", patience: float = _PATIENCE
    ) -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise SandboxError(f"{self.id} is closed")
        if self._moving.locked():
            async with self._moving:
                pass
        try:
            return await self.channel.request(header, body, patience=patience)
        except FrameError as error:
            raise OSError(errno.EFBIG, str(error)) from None
