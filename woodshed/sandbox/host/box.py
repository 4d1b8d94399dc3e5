"""The host side of a box, shared by the backends: requests to the first process of the box."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol

from woodshed.sandbox.faults import box_error
from woodshed.sandbox.guest.frames import FrameError, pack_files, unpack_files
from woodshed.sandbox.protocol import (
    BoxError,
    BoxGone,
    BoxSpec,
    ExecResult,
    Paused,
    SandboxError,
    Snapshot,
    Unsupported,
)

from .channel import Channel
from .owner import KILLED

_PATIENCE = 120.0
_END_SECONDS = 60.0


OUT_OF_MEMORY = {"out of memory": "the box took more memory than it may and was ended"}


class Dropping(Protocol):
    """The part of a backend that every box uses."""

    async def drop(self, snapshot: Snapshot) -> None: ...


class ChannelBox(ABC):
    """Implements ``protocol.Sandbox`` over a channel; each backend adds how a snapshot is made and how a box ends.

    ``ends``: the ways in which a box can end itself: start of the helper process's report -> error message.
    """

    ends: Mapping[str, str] = OUT_OF_MEMORY
    no_memory_snapshots = ""
    """Why there are none; empty if there are."""
    _backend: Dropping

    def __init__(self, id: str, spec: BoxSpec, channel: Channel) -> None:
        self.id = id
        self.spec = spec
        self.channel = channel
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._when_closed: list[Callable[[], None]] = []
        self._end = ""  # why the box is gone, once the backend was asked
        self._moving = asyncio.Lock()
        self._abandoned: set[asyncio.Task[None]] = set()
        self._counts = {"execs": 0, "seconds": 0.0}

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
        """Run a command; a program that does not exist gives status 127, as in a shell."""
        argv = ["/usr/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in a for a in argv):
            raise ValueError("exec: the command is empty or contains a NUL byte")
        request = {
            "op": "exec",
            "argv": argv,
            "cwd": cwd,
            "env": dict(env or {}),
            "timeout": timeout,
            "max_output": max_output,
        }
        return await self._run(request, stdin, timeout)

    async def exec_python(
        self,
        source: str,
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        timeout: float = 10.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run ``python -I -c SOURCE`` without the start-up time; the working folder is not on ``sys.path``."""
        code = source.encode("utf-8", "surrogatepass")
        request = {"op": "python", "source": len(code), "cwd": cwd, "timeout": timeout, "max_output": max_output}
        return await self._run(request, code + stdin, timeout)

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Read the first ``max_bytes`` bytes of a regular file."""
        _, data = await self._ask({"op": "read", "path": path, "max_bytes": max_bytes})
        return data

    async def write(self, path: str, data: bytes) -> None:
        await self.put({path: data})

    async def delete(self, path: str) -> None:
        """Remove a file, a link, or a folder with its contents."""
        await self._ask({"op": "delete", "path": path})

    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        reply, _ = await self._ask({"op": "list", "path": path, "recursive": recursive, "limit": limit})
        try:
            return [(str(name), str(kind), int(size)) for name, kind, size in reply["entries"]]
        except (KeyError, TypeError, ValueError, OverflowError):
            raise box_error(errno.EPROTO, f"{self.id}: malformed listing") from None

    async def put(self, files: Mapping[str, bytes]) -> None:
        table, body = pack_files(list(files.items()))
        await self._ask({"op": "put", "files": table}, body)

    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        """Read the files that match. Raises OSError (EFBIG) if they are larger than ``max_bytes`` together."""
        reply, body = await self._ask({"op": "get", "patterns": list(patterns), "max_bytes": max_bytes})
        try:
            return dict(unpack_files(reply.get("files"), body))
        except FrameError as error:
            raise box_error(errno.EPROTO, f"{self.id}: {error}") from None

    async def usage(self) -> dict[str, int]:
        """Measure ``processes``, ``memory`` and ``disk`` (bytes) of the box now."""
        reply, _ = await self._ask({"op": "stats"})
        try:
            return {name: int(reply.get(name, 0)) for name in ("processes", "memory", "disk")}
        except (TypeError, ValueError, OverflowError):
            raise box_error(errno.EPROTO, f"{self.id}: malformed usage") from None

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot:
        """Make a snapshot, see the backend's ``_seal``. If this is cancelled, it is made all the same, and dropped."""
        if kind != "fs" and self.no_memory_snapshots:
            raise Unsupported(self.no_memory_snapshots)
        sealing = asyncio.create_task(self._sealed(kind))
        try:
            return await asyncio.shield(sealing)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._drop(sealing))
            self._abandoned.add(task)
            task.add_done_callback(self._abandoned.discard)
            raise

    async def _sealed(self, kind: Literal["fs", "full"]) -> Snapshot:
        async with self._moving:
            self._check_running()
            async with self._explained():
                return await self._seal(kind)

    async def _drop(self, sealing: asyncio.Task[Snapshot]) -> None:
        """Drop a snapshot for which nobody waits any more, as soon as it is made."""
        with contextlib.suppress(SandboxError, BoxGone):  # it was not made, or lost with the helper process
            await self._backend.drop(await sealing)

    @abstractmethod
    async def _seal(self, kind: Literal["fs", "full"]) -> Snapshot:
        """Have the backend make a snapshot. Called by one task at a time, which is not cancelled with its caller."""

    def when_closed(self, call: Callable[[], None]) -> None:
        """See ``protocol.Sandbox``."""
        self._when_closed.append(call)

    async def close(self) -> None:
        """Kill every process of the box and free its files. Idempotent; goes on in the background if cancelled."""
        if self._closing is None:
            self._closed = True
            self.hang_up()
            self._closing = asyncio.create_task(self._finish())
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        try:
            async with self._moving:  # a snapshot under way may be about to give the box new processes
                self.hang_up()
                await self._retire()
        finally:
            for call in self._when_closed:
                call()

    def stats(self) -> dict[str, Any]:
        """See ``protocol.Sandbox``."""
        return {"id": self.id, "layers": len(self.spec.layers), **self._counts, "paused": self.channel.paused}

    def hang_up(self) -> None:
        """Close the connections between host and box."""
        self.channel.close()

    @abstractmethod
    async def _retire(self) -> None:
        """Have the backend end the box."""

    async def pause(self) -> None:
        """See ``protocol.Sandbox``."""
        async with self._moving:
            self._check_open()
            if self.channel.paused:
                return
            await self.channel.request({"op": "pause"})
            self.channel.pause()
            try:
                await self._freeze()
            except BaseException:
                self.channel.go_on()
                await self.channel.request({"op": "resume"})
                raise

    async def resume(self) -> None:
        """See ``protocol.Sandbox``."""
        async with self._moving:
            self._check_open()
            if self.channel.paused:
                await self._thaw()
                self.channel.go_on()
                await self.channel.request({"op": "resume"})

    async def _freeze(self) -> None:  # noqa: B027 - most backends add nothing
        """Do what a backend adds to pausing, after the first process of the box has stopped all others."""

    async def _thaw(self) -> None:  # noqa: B027
        """Undo ``_freeze``."""

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(f"{self.id} is closed")

    def _check_running(self) -> None:
        """Raise SandboxError if the box takes no requests now."""
        self._check_open()
        if self.channel.paused:
            raise Paused(f"{self.id} is paused; resume() it first")

    async def _run(self, request: dict[str, Any], body: bytes, timeout: float) -> ExecResult:
        try:
            reply, data = await self._ask(request, body, timeout + _PATIENCE)
        except BoxError as error:
            if isinstance(error, BoxGone) and error.errno != errno.ENOMEM:
                raise
            # The box could not start the command: it is full of its own processes, or no kernel takes the command.
            full = error.errno == errno.ENOMEM
            return ExecResult(126, stderr=f"cannot start: {error.strerror}\n".encode(), out_of_memory=full)
        try:
            size = int(reply["out"])
            result = ExecResult(
                int(reply["returncode"]),
                data[:size],
                data[size:],
                bool(reply["timed_out"]),
                bool(reply["truncated"]),
                bool(reply["out_of_memory"]),
                float(reply["seconds"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            raise box_error(errno.EPROTO, f"{self.id}: malformed result") from None
        self._counts["execs"] += 1
        self._counts["seconds"] += result.seconds
        return result

    async def _ask(
        self, header: dict[str, Any], body: bytes = b"", patience: float = _PATIENCE
    ) -> tuple[dict[str, Any], bytes]:
        if self._moving.locked():
            async with self._moving:
                pass
        self._check_running()
        try:
            return await self.channel.request(header, body, patience=patience)
        except FrameError as error:
            raise box_error(errno.EFBIG, str(error)) from None
        except BoxGone as error:
            raise await self._ended(error) from None

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """Convert errors of a request to the backend by ``_ended`` if the box has ended."""
        try:
            yield
        except (SandboxError, BoxGone) as error:
            if isinstance(error, BoxGone) or self._end or self._is_gone():
                raise await self._ended(error) from None
            raise  # for example no room for a snapshot: the box goes on

    async def _ended(self, error: SandboxError | BoxGone) -> Exception:
        """Return the error to raise for a failed request, by what this machine knows about the box.

        A box that is gone or silent caused that itself, unless its helper process is gone too or we closed it.
        """
        if self._closed:
            return SandboxError(f"{self.id} is closed")
        if not self._end:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    self._end = await self._end_of()
            except TimeoutError:
                return SandboxError(f"{self.id}: its helper process did not end it within {_END_SECONDS:.0f} s")
        for end, what in self.ends.items():
            if self._end.startswith(end):
                return BoxGone(errno.ENOMEM, what)
        if self._end.startswith(KILLED):
            return SandboxError(f"{self.id}: this machine ended the box, most likely for want of memory of its own")
        if self._helper_is_gone():
            return SandboxError(f"{self.id}: its helper process is gone, and the box with it")
        return error if isinstance(error, BoxGone) else BoxGone(errno.EPIPE, str(error))

    def _helper_is_gone(self) -> bool:
        """Return whether the host process that owns the box has ended; called only after the box has ended."""
        return False

    @abstractmethod
    def _is_gone(self) -> bool:
        """Return whether the backend knows that the box has ended."""

    @abstractmethod
    async def _end_of(self) -> str:
        """End a box that no longer answers, if it has not ended yet; return why it ended."""
