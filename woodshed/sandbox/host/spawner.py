"""The owner's side of a helper process that makes boxes: starts the process, requests boxes, tracks their end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import woodshed
from woodshed.cluster.idle import unless_idle
from woodshed.sandbox.guest import cgroups
from woodshed.sandbox.protocol import SandboxError

_BOOT = (
    "import socket, sys; s = socket.socket(fileno=0); sys.path.insert(0, s.recv(4096).decode());"
    "from {program} import main; del sys.path[0]; main(s)"
)
_PREFIX = "woodshed-boxes-"


class Spawner:
    """One helper process (fork server or box supervisor) and its folder below ``root`` (default: the system's
    temporary folder).

    ``name``: name of the backend; ``program``: module whose ``main`` the process runs; ``config``: its configuration
    besides its folder. If the process dies, its boxes and snapshots are gone: ``on_lost`` is called, and the next
    ``start`` starts another."""

    def __init__(
        self,
        root: Path | None = None,
        on_lost: Callable[[], None] = lambda: None,
        *,
        name: str = "namespace",
        program: str = "woodshed.sandbox.backends.namespace.fork_server",
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._name, self._program, self._config = name, program, dict(config or {})
        self._root = Path(root) if root is not None else Path(tempfile.gettempdir())
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._exit = -1  # pidfd of the process, while its socket is open
        self._state: asyncio.Future[dict[str, Any]] | None = None  # what it says first
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gone: dict[int, asyncio.Future[None]] = {}
        self._reasons: dict[int, str] = {}
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)
        self._starting: asyncio.Task[None] | None = None
        self._on_lost = on_lost
        self.privileged = False
        self.cgroups = ""
        self.users = False

    @property
    def folder(self) -> Path | None:
        """Folder in which the process mounts in its own namespace; seen from the host it is empty."""
        return self._folder

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process unless it runs; concurrent calls share one start. Raises SandboxError saying what to do."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        try:
            await asyncio.shield(starting)
        except Exception:  # also OSErrors of a machine without descriptors or room
            if self._starting is starting:
                self._starting = None  # the next call tries again
            raise

    async def _start(self) -> None:
        self._hang_up()
        await self._reap()
        self._folder = folder = owned_folder(self._root)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # The real path: boxes have the interpreter's folder only there, not where links to it are.
            interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
            self._process = _spawn(interpreter, self._program, theirs)
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._state = self._loop.create_future()
        try:
            ours.send(str(Path(woodshed.__file__).parent.parent).encode())
            ours.send(json.dumps({"root": str(folder.resolve()), **self._config}).encode())
            ours.setblocking(False)
            # Its children may keep the other end of the socket open after its end, so an end of file is not enough.
            self._exit = os.pidfd_open(self._process.pid)
            self._loop.add_reader(self._exit, self._exited)
            self._loop.add_reader(ours.fileno(), self._receive)
            state = await unless_idle(self._state, 60.0)
        except (OSError, TimeoutError) as error:
            raise SandboxError(f"the sandbox's helper process did not start: {error!r}") from None
        if "error" in state:
            await self.close()
            raise SandboxError(explain(state["error"], state.get("errno"), self._name))
        self.privileged, self.cgroups = bool(state["privileged"]), str(state["cgroups"])
        self.users = bool(state["users"])

    async def create(self, message: dict[str, Any], *descriptors: int) -> int:
        """Request a box that inherits ``descriptors`` (the caller closes its own copies); return the box's number.

        If the box cannot be made, the far ends are closed; ``kill`` and then ``reason`` give the cause.
        """
        number = next(self._numbers)
        assert self._loop is not None
        self._gone[number] = self._loop.create_future()
        try:
            await self._send({"op": "create", "box": number, **message}, descriptors)
        except BaseException:
            self._gone.pop(number, None)  # already empty if the helper process was lost
            raise
        return number

    async def kill(self, number: int) -> None:
        """End a box; returns when none of its processes is left."""
        future = self._gone.get(number)
        if future is None:
            return
        if not future.done():
            await self._send({"op": "kill", "box": number})
            await asyncio.shield(future)
        self._gone.pop(number, None)

    def is_gone(self, number: int) -> bool:
        """Return whether a box has ended by itself or could not be made."""
        future = self._gone.get(number)
        return future is None or future.done()

    def confirm(self, number: int) -> None:
        """Raise SandboxError if the process was lost after the box was requested, because nobody would end that box."""
        if number not in self._gone:
            raise SandboxError("the sandbox's helper process is gone, and its boxes with it")

    def reason(self, number: int) -> str | None:
        """Return and forget what the process reported about the end of a box; call after ``kill``."""
        return self._reasons.pop(number, None)

    async def end_of(self, number: int) -> str:
        """End a box that no longer answers, if it has not ended yet; return why it ended."""
        with contextlib.suppress(SandboxError):
            await self.kill(number)
        return self.reason(number) or "gone"

    async def failure(self, number: int, error: BaseException) -> BaseException:
        """End a box whose first request failed with ``error``; return the exception to raise."""
        await self.kill(number)
        if reason := self.reason(number):
            return SandboxError(f"sandbox: {reason}")
        if isinstance(error, OSError):
            return SandboxError(f"the box's first files cannot be written: {error}")
        return error

    async def ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Request an operation on a snapshot: ``adopt``, ``checkpoint`` or ``release``. Raises SandboxError."""
        number = next(self._numbers)
        assert self._loop is not None
        future: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._replies[number] = future
        await self._send({"op": operation, "reply": number, **fields})
        answer = await future
        if "error" in answer:
            raise SandboxError(f"sandbox {operation}: {answer['error']}")
        return answer

    async def close(self) -> None:
        """End the helper process and with it every box; remove its folder."""
        self._hang_up()
        await self._reap()

    def _hang_up(self) -> None:
        if self._socket is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._exit >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._exit)
            os.close(self._exit)
            self._exit = -1

    async def _reap(self) -> None:
        """Wait for the end of the process, whose socket is closed; settle its futures and remove its folder."""
        process, self._process = self._process, None
        if process is not None:
            try:
                await asyncio.to_thread(process.wait, 20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)
        self._lost()
        folder, self._folder = self._folder, None
        if folder is not None:
            cgroups.sweep(folder.name, lambda _: True)
            shutil.rmtree(folder, ignore_errors=True)

    async def _send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode()
        sock = self._socket
        if sock is None:
            raise SandboxError("the sandbox backend is closed")
        while True:
            if self._socket is not sock:  # the next process, if there is one, knows nothing of this request
                raise SandboxError("the sandbox's helper process is gone")
            try:
                with _raised_limit() if fds else contextlib.nullcontext():
                    socket.send_fds(sock, [data], list(fds))
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)  # the socket's queue of requests is full
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    raise SandboxError(f"sandbox: layers and environment take {len(data)} bytes, too many") from None
                self._vanished()
                raise SandboxError(f"the sandbox's helper process is gone: {error.strerror}") from None

    def _receive(self) -> None:
        assert self._socket is not None
        for _ in range(64):
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._vanished()
                return
            message = json.loads(data)
            if "gone" in message:
                if "error" in message:
                    self._reasons[message["gone"]] = message["error"]
                future = self._gone.get(message["gone"])
                if future is not None and not future.done():
                    future.set_result(None)
            elif "reply" in message:
                waiting = self._replies.pop(message["reply"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            elif self._state is not None and not self._state.done():
                self._state.set_result(message)

    def _exited(self) -> None:
        self._receive()  # its last messages
        if self._socket is not None:
            self._vanished()

    def _vanished(self) -> None:
        self._hang_up()
        self._lost()
        if self._starting is not None and self._starting.done():  # a start under way ends by itself
            self._starting = None
        self._on_lost()

    def _lost(self) -> None:
        """Settle all futures: the process has ended, and its boxes with it."""
        for future in self._gone.values():
            if not future.done():
                future.set_result(None)
        for reply in self._replies.values():
            if not reply.done():
                reply.set_result({"error": "the helper process is gone"})
        if self._state is not None and not self._state.done():
            self._state.set_result({"error": "its helper process ended at once; the reason is on standard error"})
        self._gone.clear()
        self._replies.clear()


@contextlib.contextmanager
def _raised_limit() -> Iterator[None]:
    """Raise RLIMIT_NOFILE to the hard limit, which also bounds the descriptors in flight of this user.

    Boxes can use at most half of it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _spawn(interpreter: str, program: str, stdin: socket.socket) -> subprocess.Popen[bytes]:
    # A fresh process instead of a fork: boxes must not inherit the caller's threads, locks and memory.
    command = [interpreter, "-I", "-S", "-c", _BOOT.format(program=program)]
    return subprocess.Popen(
        command,
        stdin=stdin.fileno(),
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={"LANG": "C.UTF-8"},
        umask=0o022,  # boxes read its folders as another user
    )


def owned_folder(root: Path) -> Path:
    """Make a folder below ``root`` whose name identifies its owner, this process; sweep those of dead owners."""
    root.mkdir(parents=True, exist_ok=True)
    sweep(root)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_mark()}-", dir=root))
    folder.chmod(0o755)
    return folder


def sweep(root: Path) -> None:
    """Remove folders and control groups of dead owners, whose processes and mounts ended with them."""
    for entry in root.glob(_PREFIX + "*"):
        if _belongs_to_dead(entry.name):
            shutil.rmtree(entry, ignore_errors=True)
    cgroups.sweep(_PREFIX, _belongs_to_dead)


def _belongs_to_dead(name: str) -> bool:
    return is_dead(name.removeprefix(_PREFIX).rpartition("-")[0])


def owner_mark() -> str:
    """Return an identifier of this process that is unique over time and over pid namespaces."""
    return f"{os.getpid()}-{start_time(os.getpid())}-{_pid_namespace()}"


def is_dead(mark: str) -> bool:
    """Return whether the owner with this mark has ended; False if it is in another pid namespace, so unknown."""
    pid, _, rest = mark.partition("-")
    started, _, namespace = rest.partition("-")
    return pid.isdigit() and namespace == _pid_namespace() and start_time(int(pid)) != started


def _pid_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def explain(message: str, code: int | None, backend: str) -> str:
    """Return the error message, with a remedy, for a helper process that could not set itself up."""
    if code == 28:  # ENOSPC; here it does not mean a full disk
        message = message.replace("No space left on device", "no more user namespaces may be made")
    text = f"the {backend} sandbox cannot work on this machine: {message}"
    if code in (1, 28, 38, 22) and ("unshare" in message or "clone" in message):
        text += (
            "\nIt needs user namespaces. As administrator set whichever of these exists here:"
            "\n  sysctl user.max_user_namespaces=15000"
            "\n  sysctl kernel.unprivileged_userns_clone=1"
            "\n  sysctl kernel.apparmor_restrict_unprivileged_userns=0"
            "\nIn a container, allow unshare and mount in its seccomp profile."
        )
    return text


def start_time(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
