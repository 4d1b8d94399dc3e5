"""Boxes without namespaces: a copied folder, Landlock, a system-call filter, limits. Weaker than every other backend.

Programs of a box are processes of the host with the host's process numbers; its workspace is a folder of the host's,
not ``/workspace``. What it keeps in and what it cannot is in docs/sandboxes.md. Never chosen unless asked for by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Literal

from woodshed.record.walk import all_below

from ..box import ChannelBox
from ..channel import Channel
from ..faults import of_the_machine
from ..frames import pack_files
from ..payload import PLACE, boot, copy_agent
from ..protocol import BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported
from ..spawner import owned_folder
from ..template import BOX_UID, SITE_PACKAGES
from ..together import all_or_none
from . import rules
from .interpreter import find_interpreter, open_to_others

_FOLDERS = ("workspace", "tmp", "home", "packages")
_LEAVE = 20.0
_USERS, _MANY = BOX_UID + 1000, 100_000
"""Host user ids of boxes when root runs them."""


class LandlockBox(ChannelBox):
    def __init__(
        self, backend: LandlockBackend, spec: BoxSpec, folder: Path, process: asyncio.subprocess.Process,
        channel: Channel,
    ) -> None:  # fmt: skip
        super().__init__(f"box-{secrets.token_hex(6)}", spec, channel)
        self.folder, self.process = folder, process
        self._backend = backend

    async def snapshot(self, kind: Literal["fs", "full"] = "fs") -> Snapshot:
        """Copy the box's files, its processes stopped; the box goes on."""
        if kind != "fs":
            raise Unsupported("the landlock backend has no memory snapshots; use snapshot('fs'), or the gvisor backend")
        async with self._moving:  # no command starts meanwhile
            self._check_running()
            async with self._explained():
                await self.channel.request({"op": "reset"})
                return await self._backend.keep(self)

    async def _retire(self) -> None:
        await self._backend.retire(self)

    def _is_gone(self) -> bool:
        return self.process.returncode is not None

    async def _end_of(self) -> str:
        self.channel.close()
        with contextlib.suppress(TimeoutError):  # ``close`` ends it
            await asyncio.wait_for(self.process.wait(), _LEAVE)
        return "its first process ended"


class LandlockBackend:
    """Belongs to the event loop that first uses it; ``root`` (open to other users) holds one folder while it runs."""

    name = "landlock"

    def __init__(self, root: Path | None = None) -> None:
        self._root = Path(root) if root is not None else Path(tempfile.gettempdir())
        self._place: Path | None = None
        self._boxes: set[LandlockBox] = set()
        self._snapshots: dict[str, tuple[BoxSpec, Path]] = {}

    def probe(self) -> Probe:
        """What works here, found by doing it; cached for the process."""
        from .probe import probe_landlock

        return probe_landlock(self._root)

    @of_the_machine
    async def create(self, spec: BoxSpec) -> LandlockBox:
        """A fresh box. Raises Unsupported for what only a root of its own could give."""
        if spec.root is not None or spec.image or spec.egress is not None:
            raise Unsupported("a landlock box has neither a root nor a network of its own; use the namespace backend")
        folder = self._folder()
        try:
            await asyncio.to_thread(_lay_out, folder, spec)
        except BaseException:
            shutil.rmtree(folder)
            raise
        return await self._start(spec, folder)

    @of_the_machine
    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """``n`` boxes that start from a copy of the snapshot's files each."""
        spec, kept = self._known(snapshot)

        async def one() -> LandlockBox:
            folder = self._folder()
            await asyncio.to_thread(_copy, kept, folder)
            return await self._start(replace(spec, files={}), folder)

        return await all_or_none(one() for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot and remove its files."""
        _, kept = self._known(snapshot)
        del self._snapshots[snapshot.id]
        await asyncio.to_thread(shutil.rmtree, kept)

    async def close(self) -> None:
        """End every box and remove everything."""
        await asyncio.gather(*(box.close() for box in list(self._boxes)))
        self._snapshots.clear()
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    @of_the_machine
    async def keep(self, box: LandlockBox) -> Snapshot:
        """Called through ``box.snapshot``."""
        kept = self._folder()
        await asyncio.to_thread(_copy, box.folder, kept)
        name = kept.name
        self._snapshots[name] = (box.spec, kept)
        return Snapshot(name, "fs", self.name, None, sum(p.lstat().st_size for p in all_below(kept)))

    async def retire(self, box: LandlockBox) -> None:
        """Called through ``box.close``."""
        self._boxes.discard(box)
        await _ended(box.process)
        await asyncio.to_thread(shutil.rmtree, box.folder, ignore_errors=True)

    async def _start(self, spec: BoxSpec, folder: Path) -> LandlockBox:
        limits = spec.limits
        guest = {
            "env": dict(spec.env), "preload": list(spec.preload), "memory": limits.memory, "cpu": limits.cpu_seconds,
            "file_size": limits.file_size, "processes": limits.processes, "folder": str(folder), "named": spec.workdir,
            "user": await asyncio.to_thread(_give, folder), "hosts_kernel": True,
        }  # fmt: skip
        assert self._place is not None
        program = boot("landlock.agent", f"{self._place}{PLACE}")
        command = [find_interpreter(), "-I", "-S", "-c", program, json.dumps(guest)]
        # In a session of its own: a terminal's ^C is for the owner to decide about.
        process, channel = await Channel.open_with(
            lambda stdin, stdout: asyncio.create_subprocess_exec(
                *command, stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.PIPE, cwd="/",
                env={"LANG": "C.UTF-8"}, start_new_session=True,
            )
        )  # fmt: skip
        try:
            table, body = pack_files(list(spec.files.items()))
            await channel.request({"op": "put", "files": table}, body)
        except BaseException as error:
            channel.close()
            said = await _ended(process)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, (OSError, SandboxError)):
                raise SandboxError(f"landlock: the box did not start: {said or error}") from None
            raise
        box = LandlockBox(self, spec, folder, process, channel)
        self._boxes.add(box)
        return box

    def _folder(self) -> Path:
        if self._place is None:
            if (found := rules.version()) < rules.OLDEST:
                raise Unsupported(
                    f"landlock: version {rules.OLDEST} (Linux 6.12) is needed, this kernel has {found or 'none'}"
                )
            find_interpreter()
            place = owned_folder(self._root)
            place.chmod(0o711)  # a box knows its own folder's name, not the others'
            copy_agent(str(place), "landlock/__init__", "landlock/agent", "landlock/rules")
            if os.geteuid() == 0 and not open_to_others(place):
                shutil.rmtree(place)
                raise Unsupported(f"landlock: boxes run as an ordinary user, who cannot get at {self._root}")
            self._place = place
        return Path(tempfile.mkdtemp(dir=self._place))

    def _known(self, snapshot: Snapshot) -> tuple[BoxSpec, Path]:
        if snapshot.backend != self.name or snapshot.id not in self._snapshots:
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of this {self.name} backend, or was dropped")
        return self._snapshots[snapshot.id]


def _lay_out(folder: Path, spec: BoxSpec) -> None:
    """The box's folders, with what its layers hold for the workspace and for Python's path."""
    for name in _FOLDERS:
        (folder / name).mkdir()
        (folder / name).chmod(0o755)
    places = {spec.workdir.strip("/"): "workspace", SITE_PACKAGES.strip("/"): "packages"}
    for layer in spec.layers:
        for path in all_below(Path(layer)):
            name = path.relative_to(layer).as_posix()
            if not path.is_dir() and not name.startswith(tuple(f"{place}/" for place in places)):
                raise Unsupported(
                    f"landlock: layer {layer} holds /{name}, and a box has only {spec.workdir} and packages"
                )
        for place, target in places.items():
            if (Path(layer) / place).is_dir():
                shutil.copytree(Path(layer) / place, folder / target, symlinks=True, dirs_exist_ok=True)


def _give(folder: Path) -> int:
    """Make everything below a box's folder that of its user, whose number is returned.

    Where the owner is root, each box has a user of its own: they cannot touch each other, and processes are counted.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    user = _USERS + secrets.randbelow(_MANY)
    for path in (folder, *all_below(folder)):
        os.lchown(path, user, user)
    return user


def _copy(source: Path, target: Path) -> None:
    """Everything below ``source``, whatever kind of file it is: no program of the box runs meanwhile."""
    command = ["cp", "-a", "--reflink=auto", f"{source}/.", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(target, ignore_errors=True)  # half a copy may be what filled the disk
        raise SandboxError(f"landlock: the box's files cannot be copied: {done.stderr.strip()[-600:]}")


async def _ended(process: asyncio.subprocess.Process) -> str:
    """Wait for a first process that was hung up on; what it said last."""
    try:
        _, errors = await asyncio.wait_for(process.communicate(), _LEAVE)
    except TimeoutError:
        process.kill()
        _, errors = await process.communicate()
    return " ".join(errors.decode(errors="replace")[-600:].split())
