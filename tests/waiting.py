"""Waits that end when nothing progresses, however long a busy machine takes.

The clock of a wait (``woodshed.cluster.idle``) stands still while this process or one that it started runs or is kept
waiting for a processor. So ten other jobs on the machine make a test slow and do not fail it, and a program that hangs,
or was never started, fails it in the time given.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from woodshed.cluster.idle import IdleClock

T = TypeVar("T")
PATIENCE = 400.0
"""Seconds without progress until a test gives up."""


def wait_until(
    condition: Callable[[], T],
    what: str,
    process: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None,
    patience: float = PATIENCE,
) -> T:
    """Poll; what the condition found. Fails when ``process`` ends first, or nothing progresses for ``patience``."""
    clock = IdleClock(own=False)
    while not (found := condition()):
        assert process is None or process.poll() is None, f"ended with {process.returncode} before: {what}"
        assert clock.look() < patience, f"gave up waiting, nothing progresses: {what}"
        time.sleep(0.03)
    return found


async def until(condition: Callable[[], T], what: str = "a condition", patience: float = PATIENCE) -> T:
    """The same in an event loop."""
    clock = IdleClock()
    while not (found := condition()):
        assert clock.look() < patience, f"gave up waiting, nothing progresses: {what}"
        await asyncio.sleep(0.01)
    return found


def run_to_end(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
    **user: Any,
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` with captured text and no input; a command that makes no progress is killed."""
    words = list(map(str, command))
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **user,
    )
    said: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: said.append(process.communicate()), daemon=True)
    reader.start()
    try:
        wait_until(lambda: not reader.is_alive(), f"{' '.join(words)[:200]} to end", patience=patience)
    except BaseException:
        process.kill()
        raise
    return subprocess.CompletedProcess(words, process.returncode, *said[0])


def ended(process: subprocess.Popen[bytes], patience: float = PATIENCE) -> int:
    """Its exit code."""
    wait_until(lambda: process.poll() is not None, f"process {process.pid} to end", patience=patience)
    assert process.returncode is not None
    return process.returncode
