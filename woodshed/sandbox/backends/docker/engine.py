"""Finds a container engine's client, runs its commands, and probes what the engine can do on this machine."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterable, Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from woodshed.record.cache import cache_directory
from woodshed.sandbox.backends.namespace.probe import CHECKS, in_force
from woodshed.sandbox.protocol import BoxSpec, Limits, Probe, SandboxError, Unsupported

if TYPE_CHECKING:
    from .backend import DockerBackend


ENGINES = ("docker", "podman")
_HOW = {
    "docker": "install Docker Engine, or set WOODSHED_DOCKER to its client",
    "podman": "run `scripts/install-podman` (Debian, nothing is installed), install podman, or set WOODSHED_PODMAN",
}


@dataclass(frozen=True)
class Engine:
    """The client of an engine. ``name``: ``docker`` or ``podman``; ``program``: its path."""

    name: str
    program: str

    async def run(self, *arguments: str, data: AsyncIterable[bytes] | None = None, seconds: float = 120.0) -> str:
        """Run a command, with ``data`` as its input; return its output. Raises SandboxError with its last errors."""
        process = await asyncio.create_subprocess_exec(
            self.program,
            *arguments,
            stdin=asyncio.subprocess.PIPE if data is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                out, errors, _ = await asyncio.gather(*_read(process), _feed(process.stdin, data))
                await process.wait()
        except TimeoutError:
            raise SandboxError(f"{self.name} {arguments[0]}: did not end within {seconds:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise SandboxError(f"{self.name} {arguments[0]}: {said(errors) or process.returncode}")
        return out.decode(errors="replace").strip()


def find_engine(name: str) -> Engine:
    """Find the client of the engine ``name``. Raises Unsupported saying what to do."""
    if name not in ENGINES:
        raise ValueError(f"unknown container engine {name!r}; there is: {', '.join(ENGINES)}")
    fetched = cache_directory() / "bin" / name
    given = os.environ.get(f"WOODSHED_{name.upper()}")
    path = given or shutil.which(name) or (str(fetched) if fetched.exists() else None)
    if path is None or shutil.which(path) is None:
        raise Unsupported(f"{name} is not on the path; {_HOW[name]}")
    return Engine(name, path)


def said(errors: bytes) -> str:
    """Return the end of what a command wrote to its standard error, on one line."""
    return " ".join(errors.decode(errors="replace")[-600:].split())


def _read(process: asyncio.subprocess.Process) -> tuple[Awaitable[bytes], Awaitable[bytes]]:
    assert process.stdout is not None and process.stderr is not None
    return process.stdout.read(), process.stderr.read()


async def _feed(sink: asyncio.StreamWriter | None, data: AsyncIterable[bytes] | None) -> None:
    if sink is None or data is None:
        return
    try:
        async for piece in data:
            sink.write(piece)
            await sink.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the command ended early; its exit status is checked afterwards
    finally:
        sink.close()


SECONDS = 90.0
_ENFORCED = {  # no engine limits a container's disk space on an ordinary file system
    "memory": "the engine's control group, address space, accounting",
    "processes": "the engine's control group",
    "cpu_seconds": "accounting, RLIMIT_CPU for exec_python",
    "file_size": "RLIMIT_FSIZE",
    "wall_time": "deadline",
    "output": "cut off",
}


async def attempt(backend: DockerBackend) -> Probe:
    """Try every operation and limit on a backend that was just opened."""
    limits = Limits(memory=1 << 30, processes=16, cpu_seconds=5, file_size=1 << 20, disk=8 << 20)
    box = await backend.create(BoxSpec(files={"hello": b"written"}, limits=limits))
    result = await box.exec("cat hello")
    if (result.returncode, result.stdout) != (0, b"written"):
        return Probe(False, (f"a command fails: {result.stderr.decode(errors='replace').strip() or result}",))
    [fork] = await backend.fork(await box.snapshot())
    if await fork.read("hello") != b"written":
        return Probe(False, ("a commit does not hold the box's files",), frozenset({"exec", "exec_python"}))
    checked = await fork.exec_python(CHECKS)
    held, missing = in_force(checked.stdout, _ENFORCED)
    return Probe(not missing, tuple(missing), frozenset({"exec", "exec_python", "fs_snapshot", "fork", "images"}), held)
