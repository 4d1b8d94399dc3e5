"""Local programs under supervision: started, restarted when they die, ended with their parent.

Call everything from one long-lived thread (the kernel ties a child's parent-death signal to the thread that made it).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FATAL = "fatal: "
"""A program that ends on purpose starts a line with this and says why from there on."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProgramFailed(Exception):
    """A program died more often than it may, or in a way that no second try helps; the message says what it said."""


@dataclass
class Program:
    """``argv`` after the Python interpreter; ``log`` gets stdout and stderr; ``fatal`` exit codes are not retried."""

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
        """Restart what died and name it. Raises ProgramFailed when a program keeps dying."""
        restarted = []
        for program in self.programs.values():
            assert program.process is not None
            code = program.process.poll()
            if code is None or program.done:
                continue
            if code == 0:
                program.done = True
                continue
            if time.monotonic() - program.started > 60:
                program.restarts = 0
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
        """SIGTERM, then SIGKILL after ``grace`` seconds; all programs, or the one named."""
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


def last_words(log: Path, start: int = 0, lines: int = 15) -> str:
    """The end of what a program wrote from byte ``start`` on: why it gave up; of a traceback only the error itself."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace").splitlines()[-400:]
    except OSError:
        return ""
    reasons = [n for n, line in enumerate(text) if line.startswith(FATAL)]
    if reasons:
        return "\n".join(text[reasons[-1] :])[len(FATAL) :]
    headers = [n for n, line in enumerate(text) if line.startswith("Traceback (most recent call last)")]
    if headers:
        after = text[headers[-1] + 1 :]
        error = next((n for n, line in enumerate(after) if line and not line[0].isspace()), 0)
        return "\n".join(after[error : error + lines])
    return "\n".join(text[-lines:])


def _describe(code: int) -> str:
    if code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
