"""Runs inside the box: several runs of ``pytest_runner.py``, each in a fork of a process that has loaded pytest, or in
a new interpreter.

Standalone source like ``pytest_runner.py``, whose text comes with the request. Before each run the phase's files are
written and deleted, and the bytecode of replaced files is deleted. Runs share no process state; files that tests leave
behind stay.
"""

import base64
import json
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    scope: dict[str, Any] = {"__name__": "pytest_runner"}
    exec(compile(request["runner"], "<runner>", "exec"), scope)
    scope["load"](request["path"], request["workdir"])
    for phase in request["phases"]:
        _change(Path(request["workdir"]), phase["write"], phase["delete"])
        serve = partial(_start, request["runner"]) if phase["fresh"] else scope["serve"]
        ended = _fork(serve, phase["run"], phase["timeout"], phase["run"]["busy"])
        os.write(1, f"\n{phase['run']['nonce']}: {json.dumps(ended)}\n".encode())


def _change(root: Path, write: dict[str, str], delete: list[str]) -> None:
    for name in (*write, *delete):
        path = root / name
        # Python would take the old bytecode for a file of the same size written in the same second.
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()
    for name in delete:
        (root / name).unlink(missing_ok=True)
    for name, text in write.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(text))


def _start(runner: str, run: dict[str, Any]) -> None:
    """Replace this process by the run, in a new interpreter."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(run).encode())
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.execv(sys.executable, [sys.executable, "-I", "-B", "-c", runner])


def _fork(serve: Any, run: dict[str, Any], timeout: float, busy: float) -> "int | None":
    """Do a run in a fork; return its exit status, None if it took longer than ``timeout`` seconds.

    Time for which the run waited for a processor does not count, up to ``busy`` times the limit in all.
    """
    child = os.fork()
    if not child:
        os.setsid()
        try:
            serve(run)
        finally:
            os._exit(70)
    deadline = time.monotonic() + timeout
    last = deadline + (busy - 1) * timeout
    done, status, pause = 0, 0, 0.001
    # Read only past the deadline: later runs shall find the same free memory in this process, so the same addresses.
    while not done and ((now := time.monotonic()) < deadline or now < min(last, deadline + _starved(child))):
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
        done, status = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)  # with all processes that its tests started
    except ProcessLookupError:
        pass
    if not done:
        os.waitpid(child, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def _starved(pid: int) -> float:
    """Return the seconds for which a process's main thread has waited for a processor; 0 if the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


if __name__ == "__main__":
    main()
