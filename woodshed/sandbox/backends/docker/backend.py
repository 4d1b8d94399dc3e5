"""Boxes in containers of docker or podman, driven by the engine's command line.

The first process of a container is the same agent as in other boxes. Its interpreter is mounted from the host, so any
Linux image works. A snapshot of files is a commit; a fork is a container of that image.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from woodshed.sandbox.faults import convert_host_errors
from woodshed.sandbox.guest.frames import pack_files
from woodshed.sandbox.host.payload import copy_agent
from woodshed.sandbox.host.probing import probe_by
from woodshed.sandbox.host.spawner import owned_folder
from woodshed.sandbox.host.supervised import all_or_none
from woodshed.sandbox.protocol import BoxGone, BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported

from . import engine
from .box import DockerBox, agent_binds, start
from .engine import find_engine
from .images import Image, Images
from .runtime import runtime


class DockerBackend:
    """Makes boxes with the engine ``name``, ``docker`` or ``podman``.

    Belongs to the event loop that first uses it. Keeps one folder in ``root`` while it is open.
    """

    def __init__(self, name: str = "docker", root: Path | None = None, *, max_starting: int = 8) -> None:
        self.name = name
        self._engine = find_engine(name)
        self._root = Path(root) if root is not None else Path(tempfile.gettempdir())
        self._work: Path | None = None
        self._images: Images | None = None
        self._ready: asyncio.Task[Images] | None = None
        self._boxes: set[DockerBox] = set()
        self._snapshots: dict[str, tuple[BoxSpec, Image]] = {}
        self._users: Counter[str] = Counter()  # image -> boxes
        self._dropped: set[str] = set()
        self._starting = asyncio.Semaphore(max_starting)

    def probe(self) -> Probe:
        """Try out what works here; cached for the process."""
        return probe_docker(self.name, self._root)

    @convert_host_errors
    async def create(self, spec: BoxSpec) -> DockerBox:
        """Create a box. Raises SandboxError with the engine's error."""
        if spec.egress is not None:
            raise Unsupported(f"the {self.name} backend gives boxes no network; leave egress out or use namespace")
        if spec.image and (spec.root is not None or spec.layers):
            raise Unsupported(f"the {self.name} backend takes an image or a root, not both, and no layers on an image")
        images = await self._start()
        if spec.image:
            return await self._make(spec, Image(spec.image, foreign=True))
        root = spec.root.resolve() if spec.root is not None else None
        return await self._make(spec, await images.of_folders(root, [Path(n).resolve() for n in spec.layers]))

    async def build(self, folder: Path) -> str:
        """Build a folder with a ``Dockerfile``, such as a Harbor task's environment; return a ``BoxSpec.image``.

        The image is removed with this backend. The file's commands run in the engine's own build containers, with the
        network that those have. Raises SandboxError with the output of a failed build.
        """
        return await (await self._start()).build(Path(folder))

    @convert_host_errors
    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """Make ``n`` boxes that start from the snapshot's files."""
        spec, image = self._known(snapshot)
        return await all_or_none(self._make(replace(spec, files={}), image) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; its image is removed with the last box that was forked from it."""
        self._known(snapshot)
        del self._snapshots[snapshot.id]
        self._dropped.add(snapshot.id)
        await self._collect()

    async def close(self) -> None:
        """End every box and remove every image of this backend."""
        await asyncio.gather(*(box.close() for box in list(self._boxes)))
        self._snapshots.clear()
        self._dropped.clear()
        if self._images is not None:
            await self._images.close()
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
        self._work = self._images = self._ready = None

    async def commit(self, box: DockerBox) -> Snapshot:
        """Commit a box as an image; called through ``box.snapshot``."""
        images = await self._start()
        image = await images.commit(box.container.name, box.image)
        parent = box.image.name if box.image.name in self._snapshots else None
        self._snapshots[image.name] = (box.spec, image)
        return Snapshot(image.name, "fs", self.name, parent, await images.size(image.name))

    async def retire(self, box: DockerBox) -> None:
        """End a box; called through ``box.close``."""
        await box.container.end()
        if box in self._boxes:
            self._boxes.discard(box)
            self._users[box.image.name] -= 1
            await self._collect()

    async def _collect(self) -> None:
        """Remove dropped images that no box uses: removing an image would end its containers."""
        for name in [name for name in self._dropped if self._users[name] == 0]:
            self._dropped.discard(name)
            await (await self._start()).remove(name)

    async def _start(self) -> Images:
        if self._ready is None:
            self._ready = asyncio.create_task(self._prepare())
        ready = self._ready
        try:
            return await asyncio.shield(ready)
        except SandboxError:
            if self._ready is ready:
                self._ready = None
            raise

    async def _prepare(self) -> Images:
        await self._engine.run("version", seconds=30)  # fails if the client has no running engine
        self._work = owned_folder(self._root)
        copy_agent(str(self._work))
        self._runtime = await asyncio.to_thread(runtime)
        self._images = Images(self._engine, self._work)
        await self._images.sweep()
        return self._images

    async def _make(self, spec: BoxSpec, image: Image) -> DockerBox:
        images = await self._start()
        assert self._work is not None
        binds = agent_binds(self._work, self._runtime)
        self._users[image.name] += 1
        try:
            box = await self._run(spec, image, images, binds)
        except BaseException:
            self._users[image.name] -= 1
            raise
        self._boxes.add(box)
        return box

    async def _run(self, spec: BoxSpec, image: Image, images: Images, binds: list[tuple[str, str]]) -> DockerBox:
        async with self._starting:
            container, channel = await start(self._engine, image, binds, spec, images.label)
            try:
                table, body = pack_files(list(spec.files.items()))
                await channel.request({"op": "put", "files": table, "workdir": image.name not in self._snapshots}, body)
            except BaseException as error:
                channel.close()
                cause = await container.cause()
                if isinstance(error, SandboxError | BoxGone):
                    raise SandboxError(f"{self.name}: the box did not start: {cause}") from None
                if isinstance(error, OSError):
                    raise SandboxError(f"the box's first files cannot be written: {error}") from None
                raise
        return DockerBox(self, spec, image, container, channel)

    def _known(self, snapshot: Snapshot) -> tuple[BoxSpec, Image]:
        if snapshot.backend != self.name or snapshot.id not in self._snapshots:
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of this {self.name} backend, or was dropped")
        return self._snapshots[snapshot.id]


@lru_cache(maxsize=8)
def probe_docker(name: str, root: Path | None = None) -> Probe:
    """Probe by creating a box, running commands, writing a file, committing and forking, within 90 s.

    Callable from any thread.
    """
    return probe_by(lambda: DockerBackend(name, root), engine.attempt, engine.SECONDS)
