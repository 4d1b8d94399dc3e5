"""Actor that runs one server program on one node of a Ray cluster. Imports no ray.

It checks that the node has the same Woodshed installed as the run (``source``).
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

import woodshed

from .supervisor import Program, Supervisor, free_ports

PACKAGE = Path(woodshed.__file__).parent


class OtherSource(Exception):
    """A machine has another version of Woodshed than the run, or none."""


def source() -> str:
    """Identify the installed Woodshed: version, and first digits of a sha256 over all its Python files."""
    sha = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, data = os.fsencode(path.relative_to(PACKAGE)), path.read_bytes()
        sha.update(b"%d:%s%d:" % (len(name), name, len(data)) + data)
    return f"{woodshed.__version__} ({sha.hexdigest()[:12]})"


def check_source(wanted: str) -> None:
    """Raise OtherSource unless ``wanted`` (``source()`` of another machine) is installed here."""
    if (here := source()) != wanted:
        raise OtherSource(f"woodshed {here} is installed there, but the run uses {wanted}: install the same everywhere")


_NAME = "server"


class NodeServer:
    """Runs the program as a child of this process, so that it ends when this process or its raylet ends.

    Ray calls every method in the main thread of its worker, as ``Supervisor`` requires.
    """

    def __init__(self) -> None:
        self._supervisor = Supervisor()
        self._url = ""

    def start(self, wanted: str, argv: Sequence[str], address: str, key_variable: str, key: str) -> str:
        """Start ``python ARGV --host ADDRESS --port PORT``, wait until ``/health`` answers, and return its URL.

        ``wanted``: the required ``source()``. ``key`` is passed in its environment. Raises OtherSource, and
        ProgramFailed with the program's last output.
        """
        check_source(wanted)
        (port,) = free_ports(1, address)
        host = f"[{address}]" if ":" in address else address
        # Ray extends the import path of its workers, but the program must import the package that was checked.
        path = os.pathsep.join(filter(None, (str(PACKAGE.parent), os.environ.get("PYTHONPATH"))))
        self._supervisor.start(
            Program(
                _NAME,
                [*argv, "--host", address, "--port", str(port)],
                _log(),
                env={key_variable: key, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )
        )
        self._url = f"http://{host}:{port}"
        while not self._answers():
            self._supervisor.check()
            time.sleep(0.1)
        return self._url

    def look(self) -> str:
        """Restart the program if it died, on the same port; return its URL. Raises ProgramFailed if it keeps dying."""
        self._supervisor.check()
        return self._url

    def stop(self) -> None:
        """End the program gracefully."""
        self._supervisor.stop(grace=2.0)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=5.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def _log() -> Path:
    """Return the file in which Ray stores this worker's output, which it forwards to the run. Without such a file,
    return one in memory for ``last_words``."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        return Path(os.readlink("/proc/self/fd/2"))
    return Path(f"/proc/self/fd/{os.memfd_create('log')}")
