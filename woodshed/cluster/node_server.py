"""One server program on one node of a cluster, as the actor there keeps it. Imports no ray.

Which Woodshed is installed here: programs that are placed on other machines have to be of the same one.
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
    """A machine has another Woodshed than the run, or none."""


def source() -> str:
    """Version, and the first digits of a sha256 over names and contents of every Python file of the package."""
    sha = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, data = os.fsencode(path.relative_to(PACKAGE)), path.read_bytes()
        sha.update(b"%d:%s%d:" % (len(name), name, len(data)) + data)
    return f"{woodshed.__version__} ({sha.hexdigest()[:12]})"


def check_source(wanted: str) -> None:
    """Raises OtherSource where ``wanted`` (of ``source``, on another machine) is not what is installed here."""
    if (here := source()) != wanted:
        raise OtherSource(f"woodshed {here} is installed there, and this run is {wanted}: install the same everywhere")


_NAME = "server"


class NodeServer:
    """The program is a child of this process: however this one ends, or the raylet above it, the program ends too.

    Ray calls every method in the one main thread of its worker, as ``Supervisor`` wants it.
    """

    def __init__(self) -> None:
        self._supervisor = Supervisor()
        self._url = ""

    def start(self, wanted: str, argv: Sequence[str], address: str, key_variable: str, key: str) -> str:
        """Start ``python ARGV --host ADDRESS --port PORT``, wait until ``/health`` answers; its URL.

        ``wanted``: the source (``source.source``) it must be of. ``key`` goes into its environment. Raises OtherSource,
        and ProgramFailed with what it said last.
        """
        check_source(wanted)
        (port,) = free_ports(1, address)
        host = f"[{address}]" if ":" in address else address
        # Ray extends the import path of its workers: the program has to find the package that was checked.
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
        """Start the program again where it died, on the same port; its URL. Raises ProgramFailed if it keeps dying."""
        self._supervisor.check()
        return self._url

    def stop(self) -> None:
        """End the program in order."""
        self._supervisor.stop(grace=2.0)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=5.0, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def _log() -> Path:
    """Where Ray keeps what this worker writes, and from where it shows it to the run; else only for ``last_words``."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        return Path(os.readlink("/proc/self/fd/2"))
    return Path(f"/proc/self/fd/{os.memfd_create('log')}")
