"""What every sandbox backend does. Untrusted code runs behind this protocol only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from woodshed.record.fault import Fault, FaultSource, HostFault


class SandboxError(HostFault):
    """This machine or its sandbox failed (an infrastructure error). Nothing that runs inside a box can provoke it."""


class BoxError(Fault, OSError):
    """A box refuses or fails at what was asked of it, with an errno; ``faults.box_error`` makes them.

    An OSError that is no BoxError is this machine's own.
    """

    source: ClassVar[FaultSource] = "box"


class BoxGone(BoxError):
    """A box ended itself or does not answer. ETIMEDOUT where it was silent."""


class Paused(SandboxError):
    """The box is paused, so it does nothing but end: ``resume`` it first."""


class Unsupported(SandboxError):
    """This backend cannot do what was asked; it says so instead of doing something weaker."""


@dataclass(frozen=True)
class Limits:
    """Limits of one box. ``None`` means no limit of our own. Memory and sizes in bytes, times in seconds."""

    memory: int | None = 2 << 30
    processes: int | None = 256
    cpu_seconds: float | None = 600.0
    file_size: int | None = 256 << 20
    disk: int | None = 512 << 20


@dataclass(frozen=True)
class Egress:
    """What a box may reach outside; nothing else, not even name service. Where it names nothing, commands of the box
    may still talk to each other on a loopback of its own.

    ``allow``: hosts, through a forward proxy that the box's environment names: ``HOST``, ``*.DOMAIN`` or ``HOST:PORT``
    (80 and 443 where no port is given). ``private``: names may stand for addresses that are not public. ``routes``:
    port of the box's 127.0.0.1 -> ``HOST:PORT`` of one service, such as a gateway, that is reached directly.
    ``max_bytes`` and ``max_connections``: what may be moved and opened in all; a box beyond the latter has no network.
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
    commands besides PATH, HOME, LANG and PYTHONDONTWRITEBYTECODE. ``preload``: Python modules that the box's fork
    server imports before it serves ``exec_python``. ``egress``: no network at all where it is None. ``root``: folder of
    a whole root filesystem that takes the place of the base system (``sandbox.roots`` makes them); ``image``: the same
    as an image of a container engine. A backend that cannot take one raises Unsupported.
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
    """``returncode`` is negative for a signal, as in subprocess. ``stdout``/``stderr`` are capped at ``max_output``."""

    returncode: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    truncated: bool = False
    out_of_memory: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Snapshot:
    id: str
    kind: Literal["fs", "full"]
    backend: str
    parent: str | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Probe:
    """What a backend can do on this machine, found by doing it. ``reasons`` says why not, one sentence each.

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
        """The first ``max_bytes`` bytes. Paths are relative to the workdir.

        Raises FileNotFoundError, IsADirectoryError, PermissionError (also for what is no regular file).
        """
        ...

    async def write(self, path: str, data: bytes) -> None: ...

    async def delete(self, path: str) -> None: ...

    async def list(
        self, path: str = ".", *, recursive: bool = False, limit: int = 10_000
    ) -> list[tuple[str, str, int]]:
        """(path relative to ``path``, kind ``file``/``dir``/``link``/``other``, size in bytes), sorted by path."""
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Write several files in one round trip, making parent directories."""
        ...

    async def get(self, patterns: Sequence[str], *, max_bytes: int = 64 << 20) -> dict[str, bytes]:
        """Regular files under the workdir that match a glob of ``patterns`` (``**`` allowed), links never followed.

        Raises OSError (EFBIG) where they are larger than ``max_bytes`` together.
        """
        ...

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot: ...

    async def pause(self) -> None:
        """Stop every process of the box where it is; none gets the processor until ``resume``.

        Commands under way stay so, and the time does not count against their timeouts. Every other request raises
        Paused meanwhile. Pausing a paused box does nothing.
        """
        ...

    async def resume(self) -> None:
        """Let the box go on. Does nothing where it is not paused."""
        ...

    def stats(self) -> dict[str, Any]: ...

    def when_closed(self, call: Callable[[], None]) -> None:
        """Have ``call`` made once when this box is closed."""
        ...

    async def close(self) -> None:
        """Kill every process of the box and free its files. Idempotent."""
        ...


class Backend(Protocol):
    """A kind of boxes: creates them, forks snapshots, says by ``probe`` what it can do on this machine."""

    name: str

    def probe(self) -> Probe: ...

    async def create(self, spec: BoxSpec) -> Sandbox: ...

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]: ...

    async def drop(self, snapshot: Snapshot) -> None: ...

    async def close(self) -> None: ...
