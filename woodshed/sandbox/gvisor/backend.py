"""Boxes in gVisor: their system calls are answered by a kernel in user space, and can be frozen, copied and thawed.

A snapshot is a checkpoint of the whole box, memory, processes and files, while it goes on running; a fork is a restore
from it, any number of times. A fork of files alone (``snapshot("fs")``) ends the processes that came back. Needs
``runsc`` and neither KVM nor root.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import secrets
from pathlib import Path
from typing import Any, Literal

from ..box import ChannelBox
from ..channel import Channel
from ..frames import pack_files
from ..protocol import BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported
from ..spawner import Spawner
from ..together import all_or_none
from .runsc import Missing, find_runsc

_KEEPER = "woodshed.sandbox.gvisor.keeper"


class GvisorBox(ChannelBox):
    def __init__(self, backend: GvisorBackend, spec: BoxSpec, number: int, channel: Channel) -> None:
        super().__init__(f"box-{secrets.token_hex(6)}", spec, channel)
        self.number = number
        self._backend = backend
        self._end = ""

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot:
        """Of files alone or of everything. The box and its processes go on either way."""
        async with self._moving:
            try:
                return await self._backend.checkpoint(self, kind)
            except SandboxError as error:
                if self._end or self._backend.is_gone(self):
                    raise await self._ended(error) from None
                raise  # no room for its image, say: the box goes on

    def stats(self) -> dict[str, Any]:
        return {"id": self.id, "layers": len(self.spec.layers), **self._counts}

    async def close(self) -> None:
        """Kill every process of the box and free its files. Idempotent."""
        if not self._closed:
            self._closed = True
            self.channel.close()
            await self._backend.retire(self)

    async def _ask(
        self, header: dict[str, Any], body: bytes = b"", patience: float = 120.0
    ) -> tuple[dict[str, Any], bytes]:
        try:
            return await super()._ask(header, body, patience)
        except SandboxError as error:
            raise await self._ended(error) from None

    async def _ended(self, error: SandboxError) -> Exception:
        """What to raise for a request that failed: a box that took too much memory is no failure of the sandbox."""
        if not self._closed and not self._end:
            self._end = await self._backend.end_of(self)
        if self._end == "out of memory":
            return OSError(errno.ENOMEM, "the box took more memory than it may and was ended")
        return error


class GvisorBackend:
    """Belongs to the event loop that first uses it; ``root`` holds one folder while it runs."""

    name = "gvisor"

    def __init__(self, root: Path | None = None, *, max_starting: int = 8) -> None:
        try:
            runsc = find_runsc()
        except Missing as error:
            raise Unsupported(f"gvisor: {error}") from None
        self._root = root
        self._spawner = Spawner(root, self._forget, name=self.name, program=_KEEPER, config={"runsc": runsc})
        self._names = itertools.count(1)
        self._boxes: set[GvisorBox] = set()
        self._snapshots: dict[str, BoxSpec] = {}
        self._starting = asyncio.Semaphore(max_starting)

    def probe(self) -> Probe:
        """What works here, found by doing it; cached for the process."""
        from .probe import probe_gvisor

        return probe_gvisor(self._root)

    async def create(self, spec: BoxSpec) -> GvisorBox:
        """A fresh box. Raises SandboxError with what ``runsc`` says."""
        if spec.egress is not None:
            raise Unsupported("the gvisor backend gives boxes no network; leave egress out or use namespace")
        return await self._start(spec, None)

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """``n`` boxes that go on from the snapshot, each by itself."""
        spec = self._known(snapshot)
        return await all_or_none(self._start(spec, snapshot) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot and remove its image; boxes forked from it go on."""
        self._known(snapshot)
        del self._snapshots[snapshot.id]
        await self._spawner.ask("release", name=snapshot.id)

    async def close(self) -> None:
        """End every box and the helper process."""
        for box in list(self._boxes):
            box.channel.close()
        self._boxes.clear()
        self._snapshots.clear()
        await self._spawner.close()

    @property
    def folder(self) -> Path | None:
        """Where the keeper's state lies, in its own namespace; for inspection."""
        return self._spawner.folder

    async def checkpoint(self, box: GvisorBox, kind: Literal["fs", "full"]) -> Snapshot:
        """Called through ``box.snapshot``."""
        name = f"s{next(self._names)}"
        answer = await self._spawner.ask("checkpoint", name=name, box=box.number)
        self._snapshots[name] = box.spec
        return Snapshot(name, kind, self.name, None, int(answer.get("bytes", 0)))

    async def retire(self, box: GvisorBox) -> None:
        """Called through ``box.close``."""
        if box in self._boxes:
            self._boxes.discard(box)
            await self._spawner.kill(box.number)

    def is_gone(self, box: GvisorBox) -> bool:
        return self._spawner.is_gone(box.number)

    async def end_of(self, box: GvisorBox) -> str:
        """Why a box that answers no more is gone; it is, afterwards."""
        with contextlib.suppress(SandboxError):
            await self._spawner.kill(box.number)
        return self._spawner.reason(box.number) or "gone"

    async def _start(self, spec: BoxSpec, snapshot: Snapshot | None) -> GvisorBox:
        await self._spawner.start()
        limits = spec.limits
        message: dict[str, Any] = {
            "layers": [str(Path(layer).resolve()) for layer in spec.layers], "workdir": spec.workdir,
            "env": dict(spec.env), "preload": list(spec.preload), "memory": limits.memory,
            "processes": limits.processes, "cpu": limits.cpu_seconds, "file_size": limits.file_size,
            "disk": limits.disk, "image": None if snapshot is None else snapshot.id,
        }  # fmt: skip
        async with self._starting:
            (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
            try:
                number = await self._spawner.create(message, their_in, their_out)
            except BaseException:
                os.close(our_in)
                os.close(our_out)
                raise
            finally:
                os.close(their_in)
                os.close(their_out)
            channel = await Channel.open_pipes(our_in, our_out)
            try:
                if snapshot is None:
                    files = {**_below_workdir(spec), **spec.files}
                    table, body = pack_files(list(files.items()))
                    await channel.request({"op": "put", "files": table}, body)
                else:
                    await channel.request({"op": "reset" if snapshot.kind == "fs" else "stats"})
            except BaseException as error:
                channel.close()
                raise await self._spawner.failure(number, error) from None
        box = GvisorBox(self, spec, number, channel)
        self._boxes.add(box)
        return box

    def _known(self, snapshot: Snapshot) -> BoxSpec:
        if snapshot.backend != self.name or snapshot.id not in self._snapshots:
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of this {self.name} backend, or was dropped")
        return self._snapshots[snapshot.id]

    def _forget(self) -> None:
        """The keeper died: boxes and snapshots are gone."""
        self._boxes.clear()
        self._snapshots.clear()


def _below_workdir(spec: BoxSpec) -> dict[str, bytes]:
    """What layers hold below the working folder: that is a file system of its own, which hides theirs."""
    found: dict[str, bytes] = {}
    for layer in spec.layers:
        root = Path(layer) / spec.workdir.lstrip("/")
        for path in root.rglob("*") if root.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                found[f"{spec.workdir}/{path.relative_to(root).as_posix()}"] = path.read_bytes()
    return found
