"""Starts, watches, ends and reports the commands that PID 1 runs. They inherit nothing but their three streams."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import signal
import sys
import termios
import time
from typing import Any, NoReturn

from . import kernel, pyrun
from .processes import kill, processes

_MAX_OUTPUT = 64 << 20
_FLOOD = 64 << 20
"""Bytes of output discarded beyond ``max_output`` before the command is killed."""


class Job:
    """One running command. ``out`` and ``err`` are the capped streams; ``deadline`` is on the monotonic clock."""

    def __init__(self, request: dict[str, Any], stdin: bytes, spec: dict[str, Any]) -> None:
        self.id = int(request["id"])
        self.cap = min(int(request["max_output"]), _MAX_OUTPUT)
        self.started = time.monotonic()
        self.deadline = self.started + float(request["timeout"])
        self.status: int | None = None
        self.timed_out = self.truncated = self.out_of_memory = False
        self.kills = 0  # processes that the kernel had killed for lack of memory when this began
        self._discarded = 0
        self.streams: dict[int, bytearray] = {}
        pipes: list[int] = []
        source = _stdin(stdin)
        try:
            pipes += os.pipe2(os.O_CLOEXEC)
            pipes += os.pipe2(os.O_CLOEXEC)
            start = _python if request["op"] == "python" else _program
            self.pid = start(request, spec, source, pipes[1], pipes[3])
            self.pidfd = _end_of(self.pid)
        except OSError:
            for fd in pipes:
                os.close(fd)
            raise
        finally:
            os.close(source)
        for read, write in (pipes[:2], pipes[2:]):
            os.close(write)
            os.set_blocking(read, False)
            self.streams[read] = bytearray()
        self.out, self.err = self.streams.values()

    def drain(self, fd: int, *, everything: bool = False) -> bool:
        """Read from a stream; return False at its end. Reads one piece per call unless ``everything``.

        ``everything`` reads only what is there now: a process that was left behind may write faster than this reads.
        """
        buffer = self.streams[fd]
        left = _held(fd) if everything else None
        while True:
            try:
                data = os.read(fd, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            room = self.cap - len(buffer)
            buffer += data[: max(room, 0)]
            if len(data) > room:
                self.truncated = True
                self._discarded += len(data) - max(room, 0)
                if self._discarded > _FLOOD:
                    self.kill()
                    return False
            if left is not None:
                left -= len(data)
            if left is None or left <= 0:
                return True

    def woken(self) -> None:
        """Check whether the command has ended; called when ``pidfd`` is readable."""
        if self.pidfd in _wakers:
            with contextlib.suppress(BlockingIOError):
                os.read(self.pidfd, 4096)

    def kill(self) -> None:
        """Kill the command's session: the command and everything it started that did not detach itself.

        The command is killed first: a shell whose child is killed would go on with its next command.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # at once, whatever is being forked
        session = [process.pid for process in processes() if process.session == self.pid]
        for pid in (self.pid, *session):
            kill(pid)

    def result(self) -> tuple[dict[str, Any], bytes]:
        """Return the reply frame of an ended command, and close its descriptors."""
        for fd in list(self.streams):
            self.drain(fd, everything=True)
            os.close(fd)
        _close_end(self.pidfd)
        header = {
            "id": self.id,
            "returncode": os.waitstatus_to_exitcode(self.status or 0),
            "out": len(self.out),
            "timed_out": self.timed_out,
            "truncated": self.truncated,
            "out_of_memory": self.out_of_memory,
            "seconds": round(time.monotonic() - self.started, 6),
        }
        return header, bytes(self.out + self.err)


def _held(fd: int) -> int:
    """Return the number of bytes that wait in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


_wakers: dict[int, int] = {}
"""Pipes, one for each command, that replace pidfds where the kernel has none; written to whenever a child ends."""


def _end_of(pid: int) -> int:
    """Return a descriptor that becomes readable when the process may have ended."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    _wakers[read] = write
    signal.signal(signal.SIGCHLD, _wake)
    os.write(write, b"x")  # it may have ended already
    return read


def _wake(*_: object) -> None:
    for write in _wakers.values():
        with contextlib.suppress(BlockingIOError):
            os.write(write, b"x")


def _close_end(fd: int) -> None:
    os.close(fd)
    if fd in _wakers:
        os.close(_wakers.pop(fd))


def _stdin(data: bytes) -> int:
    if not data:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        if len(data) <= _room(write, len(data)):
            os.write(write, data)
        elif os.fork() == 0:
            _feed(write, data)
    except OSError:
        os.close(read)
        raise
    finally:
        os.close(write)
    return read


def _room(pipe: int, wanted: int) -> int:
    """Return how many bytes an empty pipe takes without a reader, enlarging it to ``wanted`` if the kernel allows."""
    if 1 << 16 < wanted <= 1 << 20:
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, wanted)
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def _feed(pipe: int, data: bytes) -> NoReturn:
    """Write ``data`` in a child until all of it is read or nobody reads any more."""
    try:
        os.dup2(pipe, 0)
        kernel.close_range(1)
        kernel.capset(0)
        view = memoryview(data)
        while view:
            view = view[os.write(0, view) :]
    finally:
        os._exit(0)


def _program(request: dict[str, Any], spec: dict[str, Any], stdin: int, out: int, err: int) -> int:
    """Start a program; return its pid. Exec drops the capability, close-on-exec every other descriptor.

    posix_spawn shares PID 1's memory until the exec: it copies no pages, but PID 1 waits for the exec, and another
    process of the box could stop the child before it for ever. So PID 1 spawns only if the box has no other process,
    and forks otherwise. Raises OSError.
    """
    environment = spec["environment"]
    if request["env"]:
        environment = {**environment, **request["env"]}
    argv = [*spec.get("prefix", ()), *request["argv"]]
    os.environ["PATH"] = environment.get("PATH", "/usr/bin:/bin")  # posix_spawnp searches the caller's PATH
    os.chdir(request["cwd"])
    try:
        if not alone():
            return _forked(argv, environment, spec, stdin, out, err)
        return os.posix_spawnp(
            argv[0],
            argv,
            environment,
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((stdin, out, err))],
        )
    finally:
        os.chdir("/")


def alone() -> bool:
    """Return whether PID 1 has no children, not even ended ones. Then the box has no other process: orphans become
    children of PID 1."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _forked(argv: list[str], environment: dict[str, str], spec: dict[str, Any], stdin: int, out: int, err: int) -> int:
    if "/" not in argv[0] and shutil.which(argv[0], path=environment.get("PATH")) is None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    pid = os.fork()
    if pid:
        return pid
    try:
        _enter_child(spec, stdin, out, err)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)
    except BaseException as error:
        os.write(2, f"cannot start: {error}\n".encode())
    os._exit(126)


def _enter_child(spec: dict[str, Any], stdin: int, out: int, err: int) -> None:
    """Set up a fork of the first process: a session of its own, the three streams, no other descriptor."""
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    kernel.close_range(3)


def _python(request: dict[str, Any], spec: dict[str, Any], stdin: int, out: int, err: int) -> int:
    """Fork PID 1 and run the source in the child, without other descriptors and capabilities; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _enter_child(spec, stdin, out, err)
        if spec["cpu"] is not None:
            seconds = max(1, round(spec["cpu"]))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        if "user" in spec:
            os.setgroups([])
            os.setresgid(*(spec["user"],) * 3)
            os.setresuid(*(spec["user"],) * 3)
            kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 1)  # PID 1 is not dumpable, so /proc/self would not be the user's
        kernel.capset(0)
        os.chdir(request["cwd"])
        pyrun.run(request["source"], spec["finders"])
    except BaseException as error:
        os.write(2, f"cannot start: {error}\n".encode())
    os._exit(126)
