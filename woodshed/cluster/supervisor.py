"""Supervision of local programs: they are started, restarted when they die, and ended with their parent.

Call everything from one long-lived thread (the kernel ties a child's parent-death signal to the thread that made it).
"""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FATAL = "fatal: "
"""Prefix of the first line of the reason that a program prints before it ends deliberately."""

_PROGRAMMING_ERRORS = (AttributeError, ImportError, NameError, NotImplementedError, SyntaxError, TypeError)
"""Exceptions for which a restart is pointless: it runs the same code."""
_TRANSIENT = (OSError, MemoryError, EOFError)
"""Exceptions that a machine or a network may have caused, even if the same one comes again."""
_TRANSIENT_NAMES = ("httpx.", "httpcore.", "SandboxError", "EndpointLost", "GatewayError", "ChainError")
"""The same for exceptions of other folders, as parts of their names."""
_FRAMES = 6
"""Number of lines of a traceback, above the error itself, that are shown of a failed program."""

_READ = 4 << 20
"""Maximum number of bytes at the end of a log, which may have grown for weeks, that are searched for the reason."""

_TRACEBACK = "Traceback (most recent call last)"
_SETTLED = 60.0
"""A run of more than these seconds made progress, so that its program may be restarted as often as at first."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProgramFailed(Exception):
    """A program died too often, or of an error for which a restart is pointless; the message has its last output."""


@dataclass
class Program:
    """``argv`` after the Python interpreter; ``log`` gets stdout and stderr; ``fatal`` exit codes are not retried.

    ``failure`` is the error that ended its last run, empty if that was killed.
    """

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int = 5
    fatal: frozenset[int] = frozenset({2})
    restarts: int = 0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    log_start: int = 0
    done: bool = False
    failure: str = ""


class Supervisor:
    """Keeps programs alive until they exit with 0 or ``stop`` is called."""

    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def start(self, program: Program) -> None:
        program.log.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()

        def tie_to_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        with program.log.open("ab") as log:
            program.log_start = log.tell()
            program.process = subprocess.Popen(
                [sys.executable, *program.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **program.env},
                preexec_fn=tie_to_parent,
            )
        program.started = time.monotonic()
        self.programs[program.name] = program

    def check(self) -> list[str]:
        """Restart programs that died and return their names.

        Raises ProgramFailed when a program keeps dying, and at once when a restart is pointless: after a programming
        error, or the same error as in the run before. After a run of a minute that error only counts as a restart,
        where another one begins the count anew: a program that fails at its end is not restarted for ever.
        """
        restarted = []
        for program in self.programs.values():
            assert program.process is not None
            code = program.process.poll()
            if code is None or program.done:
                continue
            if code == 0:
                program.done = True
                continue
            before, program.failure = program.failure, _error(program) if code > 0 else ""
            repeated = _is_deterministic(program.failure, before)
            if time.monotonic() - program.started > _SETTLED:
                program.restarts = program.restarts if repeated else 0
                repeated = _is_deterministic(program.failure, "")
            if code not in program.fatal and repeated:
                frames = last_words(program.log, program.log_start, frames=_FRAMES)
                raise ProgramFailed(f"{program.name} fails in the same way at every start, so it ends here\n{frames}")
            if code in program.fatal or program.restarts >= program.max_restarts:
                said = last_words(program.log, program.log_start)
                deliberate = code in program.fatal and said
                raise ProgramFailed(said if deliberate else f"{program.name} ended with {_describe(code)}\n{said}")
            program.restarts += 1
            self.start(program)
            restarted.append(program.name)
        return restarted

    def running(self, name: str) -> bool:
        program = self.programs.get(name)
        return bool(program and program.process and program.process.poll() is None)

    def stop(self, name: str | None = None, grace: float = 5.0) -> None:
        """End all programs, or the one named: SIGTERM, then SIGKILL after ``grace`` seconds."""
        chosen = [p for p in self.programs.values() if name is None or p.name == name]
        for program in reversed(chosen):
            if program.process and program.process.poll() is None:
                program.process.terminate()
        deadline = time.monotonic() + grace
        for program in reversed(chosen):
            if program.process is None:
                continue
            try:
                program.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                program.process.kill()
                program.process.wait()
            self.programs.pop(program.name, None)


def _error(program: Program) -> str:
    """Return the error (type and message) of the traceback that a run ended with; empty if there is none."""
    said = last_words(program.log, program.log_start, frames=1)
    return last_words(program.log, program.log_start) if said.startswith(_TRACEBACK) else ""


def _is_deterministic(error: str, before: str) -> bool:
    """Return whether another start would end with the same error. ``before``: the error of the run before, if any."""
    name = error.partition(":")[0].partition("\n")[0]
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, _PROGRAMMING_ERRORS):
        return True
    if (isinstance(kind, type) and issubclass(kind, _TRANSIENT)) or any(part in name for part in _TRANSIENT_NAMES):
        return False
    return bool(error) and error == before


def last_words(log: Path, start: int = 0, lines: int = 15, *, frames: int = 0) -> str:
    """Return the end of a program's output from byte ``start`` on: its reason after ``FATAL``, else the error of its
    last traceback with the last ``frames`` lines above it, else its last lines.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _READ))
            text = file.read().decode(errors="replace").splitlines()[-400:]
    except OSError:
        return ""
    reasons = [n for n, line in enumerate(text) if line.startswith(FATAL)]
    if reasons:
        return "\n".join(text[reasons[-1] :])[len(FATAL) :]
    headers = [n for n, line in enumerate(text) if line.startswith(_TRACEBACK)]
    if headers:
        after = text[headers[-1] + 1 :]
        error = next((n for n, line in enumerate(after) if line and not line[0].isspace()), 0)
        above = [_TRACEBACK, *after[max(0, error - frames) : error]] if frames else []
        return "\n".join([*above, *after[error : error + lines]])
    return "\n".join(text[-lines:])


def _describe(code: int) -> str:
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return ``count`` different ports of the address ``host`` that are free now."""
    held = [socket.create_server((host, 0), family=family_of(host)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family for listening on ``host``, which without a colon is IPv4 or a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET
