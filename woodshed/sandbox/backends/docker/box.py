"""A container as a box, connected by two pipes that the engine's client holds to its first process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from woodshed.sandbox.guest.template import HOME, SYSTEM_PATH
from woodshed.sandbox.host.box import OUT_OF_MEMORY, ChannelBox
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.payload import CAPABILITIES, PLACE, boot
from woodshed.sandbox.protocol import BoxSpec, SandboxError, Snapshot

from .engine import Engine, said
from .images import Image
from .runtime import INSIDE, PYTHON, SETPRIV

if TYPE_CHECKING:
    from .backend import DockerBackend

_OVERHEAD = 256 << 20
"""Bytes that the first process and the kernel may take in addition to a box's memory."""
_END_SECONDS = 20.0


class Container:
    """A running container and its connection."""

    def __init__(self, engine: Engine, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._engine = engine
        self._process = process
        assert process.stderr is not None
        self._killed = False
        self._errors = asyncio.create_task(process.stderr.read())

    @property
    def is_gone(self) -> bool:
        return self._process.returncode is not None

    async def end(self) -> None:
        """Wait until the container ends, as it does when its connection is closed; kill it if it takes too long."""
        try:
            await asyncio.wait_for(self._process.wait(), _END_SECONDS)
        except TimeoutError:
            self._killed = True
            with contextlib.suppress(SandboxError):
                await self._engine.run("kill", self.name)
            await self._process.wait()

    async def cause(self) -> str:
        """Wait until the container ends; return the reason why it ended."""
        await self.end()
        if self._process.returncode == 137 and not self._killed:
            return next(iter(OUT_OF_MEMORY))  # SIGKILL that we did not send: the kernel enforced the memory limit
        return said(await self._errors) or f"ended with {self._process.returncode}"


async def start(
    engine: Engine, image: Image, binds: list[tuple[str, str]], spec: BoxSpec, label: str
) -> tuple[Container, Channel]:
    """Run a container of ``image`` (with ``binds`` besides its own) whose first process serves the returned channel."""
    name = f"woodshed-{secrets.token_hex(8)}"
    command = [
        "run",
        *_options(name, spec, label, [*image.binds, *binds]),
        image.name,
        *PYTHON[1:],
        "-I",
        "-S",
        "-c",
        boot("machine"),
    ]
    process, channel = await Channel.open_with(
        lambda stdin, stdout: asyncio.create_subprocess_exec(
            engine.program,
            *command,
            json.dumps(_guest(spec, image.foreign)),
            stdin=stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    )
    return Container(engine, name, process), channel


def _options(name: str, spec: BoxSpec, label: str, binds: list[tuple[str, str]]) -> list[str]:
    limits = spec.limits
    options = [
        "--interactive",
        "--rm",
        "--name",
        name,
        "--label",
        label,
        "--pull",
        "never",
        "--log-driver",
        "none",
        "--network",
        "none",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--hostname",
        "box",
        "--user",
        "0:0",
        "--workdir",
        "/",
        "--entrypoint",
        PYTHON[0],
    ]
    options += [word for capability in CAPABILITIES for word in ("--cap-add", capability)]
    if limits.processes is not None:
        options += ["--pids-limit", str(limits.processes + 2)]
    if limits.memory is not None:
        size = str(limits.memory + _OVERHEAD)
        options += ["--memory", size, "--memory-swap", size]
    if limits.disk is not None:
        options += ["--shm-size", str(max(1 << 20, min(64 << 20, limits.disk)))]
    for source, target in binds:
        options += ["--volume", f"{source}:{target}:ro"]
    return options


def _guest(spec: BoxSpec, foreign: bool) -> dict[str, Any]:
    limits = spec.limits
    return {
        "env": dict(spec.env),
        "preload": list(spec.preload),
        "memory": limits.memory,
        "cpu": limits.cpu_seconds,
        "file_size": limits.file_size,
        "workdir": spec.workdir,
        "places": [spec.workdir, HOME],
        "setpriv": SETPRIV,
        "path": _path(spec),
        "image": foreign,
        "hosts_kernel": True,
    }


def _path(spec: BoxSpec) -> str:
    """Return PATH for commands in a root or in our own base; an image may set another."""
    return (
        SYSTEM_PATH if spec.root is not None or spec.image else f"{os.path.realpath(sys.base_prefix)}/bin:{SYSTEM_PATH}"
    )


def agent_binds(work: Path, runtime: Path) -> list[tuple[str, str]]:
    """Return the binds that every container has: interpreter and modules of its first process."""
    return [(str(runtime), INSIDE), (f"{work}{PLACE}/box", f"{PLACE}/box")]


class DockerBox(ChannelBox):
    _backend: DockerBackend

    def __init__(
        self, backend: DockerBackend, spec: BoxSpec, image: Image, container: Container, channel: Channel
    ) -> None:
        super().__init__(f"box-{secrets.token_hex(6)}", spec, channel)
        self.image, self.container = image, container
        self._backend = backend
        self.no_memory_snapshots = f"the {backend.name} backend has no memory snapshots; use snapshot('fs') or gvisor"

    async def _seal(self, kind: Literal["fs", "full"]) -> Snapshot:
        """Commit the box's files as an image, without ``/dev/shm``; the box and its processes go on."""
        return await self._backend.commit(self)

    async def _retire(self) -> None:
        await self._backend.retire(self)

    def _is_gone(self) -> bool:
        return self.container.is_gone

    async def _end_of(self) -> str:
        self.channel.close()
        return await self.container.cause()
