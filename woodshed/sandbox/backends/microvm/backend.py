"""Boxes in virtual machines under QEMU, each with a kernel of its own and a minimum of devices.

Everything that a box writes is in its guest's memory, so a copy of the memory is a copy of the box. A new box is forked
from a template, a guest that booted with the same layers and limits, just as a fork is made from a snapshot. Its memory
is mapped privately from a file, so only changed pages take memory of their own. Needs ``scripts/install-qemu``; without
hardware virtualisation guests are emulated, ten to thirty times slower.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from woodshed.sandbox.faults import convert_host_errors
from woodshed.sandbox.guest.frames import pack_files
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.probing import probe_by
from woodshed.sandbox.host.supervised import SupervisedBackend, SupervisedBox
from woodshed.sandbox.protocol import BoxSpec, Probe, SandboxError, Snapshot, Unsupported

from . import qemu
from .box_supervisor import ENDED, STATE, Monitor
from .images import ImageStore
from .machine import MAX_IMAGES, can_virtualise, clock_khz, command_line, guest_memory
from .qemu import Missing, find_programs
from .templates import Templates


class MicrovmBox(SupervisedBox):
    """A virtual machine: the agent's channel, and QEMU's control socket (``monitor``) for snapshots."""

    def __init__(
        self, backend: SupervisedBackend[Any], spec: BoxSpec, number: int, channel: Channel, monitor: Monitor
    ) -> None:
        super().__init__(backend, spec, number, channel)
        self._monitor = monitor

    async def save(self, state: str, memory: Callable[[], Awaitable[int]]) -> int:
        """Stop the machine, copy its memory (``memory``), write the devices' state to the file ``state``; let it go on.

        Returns the size of the memory's copy in bytes.
        """
        self.channel.hold()
        try:
            try:
                await self.channel.request({"op": "freeze"})
                try:
                    await self._monitor.execute("stop")
                    size = await memory()
                    await self._write(state)
                finally:
                    await self._monitor.execute("cont")
            finally:
                await self.thaw()  # also if we were cancelled: the agent waits for the thaw
        finally:
            self.channel.resume()
        return size

    async def stop_for_good(self, state: str) -> None:
        """Stop the machine for good and write the devices' state to the file ``state``; memory stays in its file."""
        await self.channel.request({"op": "freeze"})
        await self._monitor.execute("stop")
        await self._write(state)

    async def _write(self, state: str) -> None:
        """Write the devices' state, in the format that ``-incoming`` reads, without the memory.

        The command is named after Xen, which keeps the memory itself, as we do.
        """
        await self._monitor.execute("xen-save-devices-state", filename=state, live=False)

    async def thaw(self, env: Mapping[str, str] | None = None) -> None:
        """Let the agent go on, with the current time and fresh randomness; ``env`` is added to its environment."""
        seed = secrets.token_hex(32)
        await self.channel.request({"op": "thaw", "time": time.time(), "seed": seed, "env": dict(env or {})})

    def hang_up(self) -> None:
        super().hang_up()
        self._monitor.close()


_BOX_SUPERVISOR = "woodshed.sandbox.backends.microvm.box_supervisor"
_SLOW = "guests are emulated, ten to thirty times slower than the machine"
_BOOT_SECONDS = {"kvm": 20.0, "tcg": 300.0}


class MicrovmBackend(SupervisedBackend[MicrovmBox]):
    """Makes boxes in virtual machines. ``accelerator``: ``kvm`` or ``tcg`` (emulation)."""

    name = "microvm"
    ends = {ENDED: "the box's kernel ended, most likely because the box took all of its memory"}

    def __init__(self, root: Path | None = None, *, max_starting: int = 4) -> None:
        try:
            self._programs = find_programs()
        except Missing as error:
            raise Unsupported(f"microvm: {error}") from None
        self._images = ImageStore(self._programs)
        self.accelerator = "kvm" if can_virtualise() else "tcg"
        if self.accelerator == "tcg":
            warnings.warn(f"microvm: this machine has no hardware virtualisation; {_SLOW}", stacklevel=3)
        super().__init__(
            root,
            max_starting,
            _BOX_SUPERVISOR,
            self._programs.below_root()
            | {
                "images": str(self._images.root),
                "accelerator": self.accelerator,
            },
        )
        self._templates = Templates(self._boot, lambda name: self._spawner.ask("release", name=name))

    def probe(self) -> Probe:
        """Try out what works here; cached for the process."""
        return probe_microvm(self._root)

    @convert_host_errors
    async def create(self, spec: BoxSpec) -> MicrovmBox:
        """Create a box. Raises SandboxError with the error of the guest or of QEMU."""
        if spec.root is not None or spec.image:
            raise Unsupported("the microvm backend takes neither root nor image; use namespace, docker or podman")
        if spec.egress is not None:
            raise Unsupported("the microvm backend gives boxes no network; leave egress out or use namespace")

        async def settle(box: MicrovmBox) -> None:
            await box.thaw(spec.env)
            table, body = pack_files(list(spec.files.items()))
            await box.channel.request({"op": "put", "files": table}, body)

        async with self._templates.of(spec) as image:
            return await self._start(spec, image, settle)

    async def _resume(self, spec: BoxSpec, snapshot: Snapshot) -> MicrovmBox:
        async def settle(box: MicrovmBox) -> None:
            await box.thaw()
            if snapshot.kind == "fs":
                await box.channel.request({"op": "reset"})

        return await self._start(spec, snapshot.id, settle)

    async def _save(self, box: MicrovmBox, name: str) -> int:
        async def memory() -> int:
            return int((await self._spawner.ask("checkpoint", name=name, box=box.number))["bytes"])

        return await box.save(f"{STATE}/images/{name}/state", memory)

    async def _boot(self, spec: BoxSpec, name: str) -> None:
        """Make the template ``name``: a booted guest that is frozen before it gets a box's environment and files."""
        try:
            await self._boot_once(spec, name)
        except SandboxError as error:
            await self._spawner.ask("release", name=name)
            if self.accelerator == "tcg":
                raise
            warnings.warn(f"no guest boots with KVM here; {_SLOW} ({error})", stacklevel=2)
            self.accelerator = "tcg"
            await self._boot_once(spec, name)

    async def _boot_once(self, spec: BoxSpec, name: str) -> None:
        limits = spec.limits
        guest: dict[str, Any] = {
            "env": {},
            "preload": list(spec.preload),
            "memory": limits.memory,
            "cpu": limits.cpu_seconds,
            "file_size": limits.file_size,
            "workdir": spec.workdir,
            "processes": limits.processes,
            "places": ["/", spec.workdir, "/dev/shm"],
        }
        patience = _BOOT_SECONDS[self.accelerator]

        async def settle(box: MicrovmBox) -> None:
            await box.channel.request({"op": "become", "spec": guest}, patience=patience)
            await box.stop_for_good(f"{STATE}/images/{name}/state")

        await (await self._start(spec, name, settle, boot=True)).close()

    async def _start(
        self, spec: BoxSpec, image: str, settle: Callable[[MicrovmBox], Awaitable[None]], *, boot: bool = False
    ) -> MicrovmBox:
        """Start a machine that boots or goes on from ``image``, and make its first requests with ``settle``."""
        images, kernel, initrd = await asyncio.to_thread(self._files, spec)
        await self._spawner.start()
        limits = spec.limits
        interpreter = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
        message: dict[str, Any] = {
            "image": image,
            "boot": boot,
            "accelerator": self.accelerator,
            "images": images,
            "size": guest_memory(limits.memory, limits.disk),
            "kernel": kernel.name,
            "initrd": initrd.name,
            "append": command_line(limits.disk, interpreter, initrd.stat().st_size, clock_khz()),
        }
        async with self._starting:
            (ours, theirs), (control, controlled) = socket.socketpair(), socket.socketpair()
            with theirs, controlled:
                channel = await Channel.open(ours)  # first: nothing waits between the request and its try below
                try:
                    number = await self._spawner.create(message, theirs.fileno(), controlled.fileno())
                except BaseException:
                    channel.close()
                    control.close()
                    raise
            box = MicrovmBox(self, spec, number, channel, Monitor(control))
            try:
                await settle(box)
                self._spawner.confirm(number)
            except BaseException as error:
                box.hang_up()
                raise await self._spawner.failure(number, error) from None
        self._boxes.add(box)
        return box

    def _files(self, spec: BoxSpec) -> tuple[dict[str, str], Path, Path]:
        """Return disks, kernel and initial file system, making those that do not exist yet (which takes time)."""
        return self._disks(spec), self._images.kernel(), self._images.initrd()

    def _disks(self, spec: BoxSpec) -> dict[str, str]:
        """Return the file of each image by the serial number of its disk."""
        disks = {name: path.name for name, path in self._images.base().items()}
        for number, layer in enumerate(spec.layers):
            disks[f"layer{number:02d}"] = self._images.layer(str(Path(layer).resolve())).name
        if len(disks) > MAX_IMAGES:
            most = MAX_IMAGES - len(self._images.base())
            raise SandboxError(f"{len(spec.layers)} layers are too many; a microvm box can have {most}")
        return disks

    def _forget(self) -> None:
        super()._forget()
        self._templates.forget()


@lru_cache(maxsize=8)
def probe_microvm(root: Path | None = None) -> Probe:
    """Probe by booting a guest, running commands, writing a file, taking a snapshot and forking it.

    Callable from any thread. Takes seconds, and minutes the first time on a machine, when it makes the image of /usr.
    """
    return probe_by(lambda: MicrovmBackend(root), qemu.attempt, qemu.SECONDS)
