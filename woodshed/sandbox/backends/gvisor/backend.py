"""Boxes in gVisor: a kernel in user space serves their system calls, and they can be snapshotted with memory.

A snapshot is a checkpoint of the whole box (memory, processes, files) while it goes on running; a fork is a restore
from it, any number of times. A fork of ``snapshot("fs")`` ends the restored processes. Needs ``runsc``, but neither KVM
nor root.
"""

from __future__ import annotations

import json
import secrets
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from woodshed.record.jsonl import JsonLines
from woodshed.record.walk import all_below
from woodshed.sandbox.faults import convert_host_errors
from woodshed.sandbox.guest.frames import pack_files
from woodshed.sandbox.host.box import OUT_OF_MEMORY
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.egress.gate import PROXY_ENVIRONMENT, Gate, ports_of
from woodshed.sandbox.host.egress.rules import Record
from woodshed.sandbox.host.probing import probe_by, try_live_fork
from woodshed.sandbox.host.supervised import SupervisedBackend, SupervisedBox
from woodshed.sandbox.protocol import BoxSpec, Probe, SandboxError, Snapshot, Unsupported

from .connections import Connections
from .runsc import Missing, find_runsc

_BOX_SUPERVISOR = "woodshed.sandbox.backends.gvisor.box_supervisor"
_SHAPE = """
import json, os, sys
folders, links, modes = json.load(sys.stdin)
for path in folders:
    os.makedirs(path, exist_ok=True)
for path, target in links.items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)
for path, mode in modes.items():
    os.chmod(path, mode)
"""


_LIMITS = {
    "memory": "address space, accounting",
    "processes": "gVisor's kernel",
    "cpu_seconds": "accounting",
    "file_size": "gVisor's kernel",
    "disk": "sizes of tmpfs",
    "wall_time": "deadline",
    "output": "cut off",
}
"""Limit -> what enforces it."""


class GvisorBox(SupervisedBox):
    """A gVisor box; ``gate`` serves its connections, if it has a network."""

    def __init__(
        self, backend: GvisorBackend, spec: BoxSpec, number: int, channel: Channel, record: Record, gate: Gate | None
    ) -> None:
        super().__init__(backend, spec, number, channel, record.box)
        self.record, self.gate = record, gate
        self._gvisor = backend

    def stats(self) -> dict[str, Any]:
        return {**super().stats(), "egress": dict(self.record.counts)}

    def hang_up(self) -> None:
        if self.gate is not None:
            self.gate.close()
        super().hang_up()

    async def _freeze(self) -> None:
        await self._gvisor.hold(self, "pause")

    async def _thaw(self) -> None:
        await self._gvisor.hold(self, "resume")


class GvisorBackend(SupervisedBackend[GvisorBox]):
    """Makes gVisor boxes. ``egress_log``: file that gets a line for every request of a box to the outside."""

    name = "gvisor"
    ends = OUT_OF_MEMORY

    def __init__(self, root: Path | None = None, *, max_starting: int = 8, egress_log: Path | None = None) -> None:
        try:
            runsc = find_runsc()
        except Missing as error:
            raise Unsupported(f"gvisor: {error}") from None
        super().__init__(root, max_starting, _BOX_SUPERVISOR, {"runsc": runsc})
        self._egress_log = JsonLines(egress_log) if egress_log is not None else None

    def probe(self) -> Probe:
        """Try out what works here; cached for the process."""
        return probe_gvisor(self._root)

    @convert_host_errors
    async def create(self, spec: BoxSpec) -> GvisorBox:
        """Create a box. Raises SandboxError with the error of ``runsc``."""
        if spec.root is not None or spec.image:
            raise Unsupported("the gvisor backend takes neither root nor image; use namespace, docker or podman")
        return await self._start(spec, None)

    async def _resume(self, spec: BoxSpec, snapshot: Snapshot) -> GvisorBox:
        return await self._start(spec, snapshot)

    async def hold(self, box: GvisorBox, operation: Literal["pause", "resume"]) -> None:
        """Pause or resume a box; called through ``box.pause`` and ``box.resume``."""
        await self._spawner.ask(operation, box=box.number)

    async def _save(self, box: GvisorBox, name: str) -> int:
        box.channel.hold()
        try:
            await box.channel.request({"op": "quiet"})
            try:
                return int((await self._spawner.ask("checkpoint", name=name, box=box.number)).get("bytes", 0))
            finally:
                await box.channel.request({"op": "stats"})
        finally:
            box.channel.resume()

    async def _start(self, spec: BoxSpec, snapshot: Snapshot | None) -> GvisorBox:
        listen = ports_of(spec.egress) if spec.egress is not None else []
        environment = PROXY_ENVIRONMENT if spec.egress is not None and spec.egress.allow else {}
        record = Record(f"box-{secrets.token_hex(6)}", self._egress_log)
        await self._spawner.start()
        limits = spec.limits
        message: dict[str, Any] = {
            "layers": [str(Path(layer).resolve()) for layer in spec.layers],
            "workdir": spec.workdir,
            "env": {**environment, **spec.env},
            "listen": listen,
            "preload": list(spec.preload),
            "memory": limits.memory,
            "processes": limits.processes,
            "cpu": limits.cpu_seconds,
            "file_size": limits.file_size,
            "disk": limits.disk,
            "image": None if snapshot is None else snapshot.id,
        }
        async with self._starting:
            number, channel = await Channel.open_with(partial(self._spawner.create, message))
            gate = None
            if spec.egress is not None:
                gate = Gate(spec.egress, record, lambda: channel.send({"op": "net", "net": "shut"}))
                channel.connections = Connections(gate.accept, channel.send)
                channel.send({"op": "net", "net": "reset"})
            try:
                if snapshot is None:
                    await _lay(channel, spec)
                else:
                    await channel.request({"op": "reset" if snapshot.kind == "fs" else "stats"})
                self._spawner.confirm(number)
            except BaseException as error:
                if gate is not None:
                    gate.close()
                channel.close()
                raise await self._spawner.failure(number, error) from None
        box = GvisorBox(self, spec, number, channel, record, gate)
        self._boxes.add(box)
        return box


class _Below(NamedTuple):
    """Entries by path in the box: file contents, empty folders, links, and modes that differ from what ``put`` sets."""

    files: dict[str, bytes]
    folders: list[str]
    links: dict[str, str]
    modes: dict[str, int]


async def _lay(channel: Channel, spec: BoxSpec) -> None:
    """Write the first files of a box."""
    below = _below_workdir(spec)
    shape = [below.folders, below.links, below.modes]
    pieces = [below.files, spec.files] if any(shape) else [{**below.files, **spec.files}]
    for number, files in enumerate(pieces):
        if number:
            request = {"op": "python", "source": len(_SHAPE), "cwd": None, "timeout": 60.0, "max_output": 2000}
            reply, said = await channel.request(request, (_SHAPE + json.dumps(shape)).encode())
            if reply.get("returncode") != 0:
                raise SandboxError(f"layers below {spec.workdir}: {said.decode(errors='replace').strip()[-300:]}")
        table, body = pack_files(list(files.items()))
        await channel.request({"op": "put", "files": table}, body)


def _below_workdir(spec: BoxSpec) -> _Below:
    """Collect the layers' entries below the working folder: the file system mounted there would hide them."""
    found: dict[str, Path] = {}
    for layer in spec.layers:
        root = Path(layer) / spec.workdir.lstrip("/")
        for path in all_below(root) if root.is_dir() else ():
            name = f"{spec.workdir}/{path.relative_to(root).as_posix()}"
            if name in found and (path.is_symlink() or not path.is_dir()):  # this entry hides a folder of a lower layer
                found = {other: there for other, there in found.items() if not other.startswith(f"{name}/")}
            found[name] = path
    below = _Below({}, [], {}, {})
    full = {name.rpartition("/")[0] for name in found}
    for name, path in found.items():
        if path.is_symlink():
            below.links[name] = str(path.readlink())
        elif path.is_file():
            below.files[name] = data = path.read_bytes()
            mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            if mode != (0o755 if data[:2] == b"#!" else 0o644):
                below.modes[name] = mode
        elif path.is_dir() and name not in full:
            below.folders.append(name)
    return below


@lru_cache(maxsize=8)
def probe_gvisor(root: Path | None = None) -> Probe:
    """Probe by creating a box, running commands, writing a file, taking a snapshot and forking it, within 60 s.

    Callable from any thread.
    """
    return probe_by(lambda: GvisorBackend(root), _attempt, 60.0)


async def _attempt(backend: GvisorBackend) -> Probe:
    return await try_live_fork(backend, memory=1 << 30, limits_in_force=_LIMITS)
