"""A box on another host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from woodshed.sandbox.guest.frames import FrameError, pack_files, unpack_files
from woodshed.sandbox.protocol import BoxError, BoxGone, ExecResult, SandboxError, Snapshot, Unsupported

from . import wire
from .host import Host


class RemoteBox:
    """Implements ``protocol.Sandbox``; ``stats`` are those of the host's last answer."""

    def __init__(self, host: Host, id: str, stats: dict[str, Any]) -> None:
        self.id, self.host = id, host
        self._instance = host.instance
        self._path = f"/boxes/{quote(id, safe='')}"
        self._stats = stats
        self._closed = False
        self._when_closed: list[Callable[[], None]] = []

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        given = {"command": command if isinstance(command, str) else list(command), "env": dict(env or {})}
        return await self._run("exec", given | {"cwd": cwd, "timeout": timeout, "max_output": max_output}, stdin)

    async def exec_python(
        self,
        source: str,
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        timeout: float = 10.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        code = source.encode("utf-8", "surrogatepass")
        given = {"source": len(code), "cwd": cwd, "timeout": timeout, "max_output": max_output}
        return await self._run("exec_python", given, code + stdin)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        return (await self._ask("read", {"path": path, "max_bytes": max_bytes}))[1]

    async def write(self, path: str, data: bytes) -> None:
        await self.put({path: data})

    async def delete(self, path: str) -> None:
        await self._ask("delete", {"path": path})

    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        reply, _ = await self._ask("list", {"path": path, "recursive": recursive, "limit": limit})
        try:
            return [(str(name), str(kind), int(size)) for name, kind, size in reply["entries"]]
        except (KeyError, TypeError, ValueError):
            raise SandboxError(f"{self.id}: malformed listing") from None

    async def put(self, files: Mapping[str, bytes]) -> None:
        table, body = pack_files(list(files.items()))
        await self._ask("put", {"files": table}, body)

    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        reply, body = await self._ask("get", {"patterns": list(patterns), "max_bytes": max_bytes})
        try:
            return dict(unpack_files(reply.get("files"), body))
        except FrameError as error:
            raise SandboxError(f"{self.id}: {error}") from None

    async def usage(self) -> dict[str, int]:
        """Measure ``processes``, ``memory`` and ``disk`` (bytes). Raises Unsupported if the backend cannot."""
        reply, _ = await self._ask("usage", {})
        try:
            return {str(name): int(value) for name, value in reply["usage"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SandboxError(f"{self.id}: malformed usage") from None

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot:
        if kind == "full" and "full_snapshot" not in self.host.capabilities:
            raise Unsupported(f"{self.host.url} makes boxes without memory snapshots; use snapshot('fs')")
        reply, _ = await self._ask("snapshot", {"kind": kind})
        try:
            return wire.decode_snapshot(reply.get("snapshot"))
        except ValueError as error:
            raise SandboxError(f"{self.id}: {error}") from None

    async def pause(self) -> None:
        await self._ask("pause", {})

    async def resume(self) -> None:
        await self._ask("resume", {})

    def stats(self) -> dict[str, Any]:
        return {**self._stats, "host": self.host.url}

    def when_closed(self, call: Callable[[], None]) -> None:
        """See ``protocol.Sandbox``."""
        self._when_closed.append(call)

    async def close(self) -> None:
        """See ``protocol.Sandbox``. A host that does not answer now is told later to close the box."""
        if self._closed:
            return
        self._closed = True
        here = self._instance == self.host.instance
        if here:
            self.host.unclosed.add(self.id)
        try:
            if here:
                reply, _ = await self.host.ask(f"{self._path}/close", {})
                self._learn(reply)
                self.host.unclosed.discard(self.id)
        except wire.HostLost:
            pass
        finally:
            for call in self._when_closed:
                call()

    async def _run(self, name: str, given: dict[str, Any], body: bytes) -> ExecResult:
        try:
            reply, data = await self._ask(name, given, body)
        except BoxGone:
            raise
        except BoxError as error:  # more input than the host takes: reported as a command that cannot start
            return ExecResult(126, stderr=f"cannot start: {error.strerror}\n".encode())
        try:
            return wire.decode_result(reply, data)
        except ValueError as error:
            raise SandboxError(f"{self.id}: {error}") from None

    async def _ask(self, name: str, given: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        if self._closed:
            raise SandboxError(f"{self.id} is closed")
        if self._instance != self.host.instance:
            raise wire.HostLost(f"{self.id}: its host {self.host.url} was started again")
        reply, data = await self.host.ask(f"{self._path}/{name}", given, body)
        self._learn(reply)
        return reply, data

    def _learn(self, reply: dict[str, Any]) -> None:
        if isinstance(stats := reply.get("stats"), dict):
            self._stats = stats
