"""The protocol of sandbox backends and their boxes. Untrusted code runs behind this protocol only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from woodshed.record.fault import Fault, FaultSource, HostFault


class SandboxError(HostFault):
    """This machine or its sandbox failed (an infrastructure error). Nothing that runs inside a box can cause that."""


class BoxError(Fault, OSError):
    """A box refused or failed an operation, with an errno; created by ``faults.box_error``.

    An OSError that is not a BoxError is an error of this machine.
    """

    source: ClassVar[FaultSource] = "box"


class BoxGone(BoxError):
    """A box ended itself or does not answer. The errno is ETIMEDOUT if it was silent."""


class Paused(SandboxError):
    """The box is paused and can only be closed; ``resume`` it first."""


class Unsupported(SandboxError):
    """This backend cannot do what was asked; raised instead of doing something weaker."""


@dataclass(frozen=True)
class Limits:
    """Limits of one box; ``None`` sets no limit. Memory and sizes in bytes, times in seconds."""

    memory: int | None = 2 << 30
    processes: int | None = 256
    cpu_seconds: float | None = 600.0
    file_size: int | None = 256 << 20
    disk: int | None = 512 << 20


@dataclass(frozen=True)
class Egress:
    """Network destinations that a box may reach; everything else is blocked, also name service.

    An empty Egress gives the box only a loopback device, on which its commands can talk to each other.

    ``allow``: hosts that are reached through a forward proxy, which the box's environment names: ``HOST``,
    ``*.DOMAIN`` or ``HOST:PORT`` (80 and 443 without a port). ``private``: names may resolve to addresses that are not
    public. ``routes``: port of the box's 127.0.0.1 -> ``HOST:PORT`` of one service, such as a gateway, that is reached
    directly. ``max_bytes`` and ``max_connections``: totals over the life of the box; a box that exceeds the latter
    loses its network.
    """

    allow: tuple[str, ...] = ()
    routes: Mapping[int, str] = field(default_factory=dict)
    private: bool = False
    max_bytes: int = 4 << 30
    max_connections: int = 20_000


@dataclass(frozen=True)
class BoxSpec:
    """A box to create.

    ``layers``: host directories stacked read-only as the box's root, lowest first, on top of the backend's base
    system. ``files``: small files written on top (path in the box -> bytes). ``env`` is the whole environment of
    commands besides PATH, HOME, LANG and PYTHONDONTWRITEBYTECODE. ``preload``: Python modules that are imported before
    the box serves ``exec_python``. ``egress``: None for no network at all. ``root``: folder of a whole root filesystem
    that replaces the base system (``sandbox.images`` makes them); ``image``: the same as an image of a container
    engine. A backend that does not support a field raises Unsupported.
    """

    layers: tuple[Path, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    workdir: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    egress: Egress | None = None
    preload: tuple[str, ...] = ()
    root: Path | None = None
    image: str = ""


@dataclass
class ExecResult:
    """Result of a command. ``returncode`` is negative for a signal; ``max_output`` caps ``stdout`` and ``stderr``."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False
    out_of_memory: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    """A state of a box to fork from: its files (``fs``), or files, memory and processes (``full``).

    ``backend``: name of the backend that has it. ``bytes``: its size, if the backend knows.
    """

    id: str
    kind: Literal["fs", "full"]
    backend: str
    parent: str | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Probe:
    """Abilities of a backend on this machine, found by trying. ``reasons``: why it does not work, one sentence each.

    ``limits_in_force``: name of a limit -> what enforces it here.
    """

    ok: bool
    reasons: tuple[str, ...] = ()
    capabilities: frozenset[str] = frozenset()
    limits_in_force: Mapping[str, str] = field(default_factory=dict)


class Sandbox(Protocol):
    """One box: an isolated computer with commands, files, snapshots and limits."""

    id: str

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
        """Run a command as the box's ordinary user. A ``str`` goes through ``/bin/sh -c``."""
        ...

    async def exec_python(
        self,
        source: str,
        *,
        stdin: bytes = b"",
        cwd: str | None = None,
        timeout: float = 10.0,
        max_output: int = 1 << 20,
    ) -> ExecResult:
        """Run Python source in a forked child of the box's warm interpreter, with the privileges of ``exec``.

        Isolated as ``python -I -c``: the working folder is not on ``sys.path``.
        """
        ...

    async def read(self, path: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Read the first ``max_bytes`` bytes of a regular file. Paths are relative to the workdir.

        Raises FileNotFoundError, IsADirectoryError, PermissionError (also for anything but a regular file).
        """
        ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def delete(self, path: str) -> None: ...

    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        """List (path relative to ``path``, kind ``file``/``dir``/``link``/``other``, bytes), sorted by path."""
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write several files in one round trip, making parent directories."""
        ...

    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        """Read the regular files under the workdir that match a glob of ``patterns`` (``**`` allowed).

        Links are never followed. Raises OSError (EFBIG) if the files are larger than ``max_bytes`` together.
        """
        ...

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot: ...

    async def pause(self) -> None:
        """Stop every process of the box; none gets the processor until ``resume``.

        Commands under way stay under way, and the time does not count against their timeouts. Other requests raise
        Paused meanwhile. Pausing a paused box does nothing.
        """
        ...

    async def resume(self) -> None:
        """Let the box go on. Does nothing if it is not paused."""
        ...

    def stats(self) -> dict[str, Any]: ...

    def when_closed(self, call: Callable[[], None]) -> None:
        """Register ``call``, which is called once when this box is closed."""
        ...

    async def close(self) -> None:
        """Kill every process of the box and free its files. Idempotent."""
        ...


class Backend(Protocol):
    """Creates boxes and forks snapshots; ``probe`` tests what works on this machine.

    A class that a recipe names (``"module:Class"``) is called with ``(root, *, max_starting, egress_log, cgroups)``,
    see ``namespace.backend.NamespaceBackend``, and should start nothing before its first box.
    """

    name: str

    def probe(self) -> Probe: ...

    async def create(self, spec: BoxSpec) -> Sandbox: ...

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]: ...

    async def drop(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...
