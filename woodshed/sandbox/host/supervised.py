"""Boxes run by a box supervisor, one program each: the host side that the gvisor and microvm backends share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar

from woodshed.sandbox.faults import convert_host_errors
from woodshed.sandbox.protocol import BoxSpec, Sandbox, SandboxError, Snapshot, Unsupported

from .box import ChannelBox
from .channel import Channel
from .spawner import Spawner


async def all_or_none(starting: Iterable[Awaitable[Sandbox]]) -> list[Sandbox]:
    """Make several boxes; if one cannot be made, or this is cancelled, close the others and raise the error."""
    tasks = [asyncio.ensure_future(each) for each in starting]
    try:
        made = await asyncio.gather(*tasks, return_exceptions=True)
    except asyncio.CancelledError:  # by now all of them have ended, some with a box
        whole = [task.result() for task in tasks if not task.cancelled() and task.exception() is None]
        await asyncio.gather(*(box.close() for box in whole), return_exceptions=True)
        raise
    boxes = [m for m in made if not isinstance(m, BaseException)]
    failed = [m for m in made if isinstance(m, BaseException)]
    if failed:
        await asyncio.gather(*(box.close() for box in boxes))
        raise failed[0]
    return boxes


class SupervisedBox(ChannelBox):
    """A box run by a box supervisor; ``number`` is the supervisor's number for it."""

    _backend: SupervisedBackend[Any]

    def __init__(
        self, backend: SupervisedBackend[Any], spec: BoxSpec, number: int, channel: Channel, id: str | None = None
    ) -> None:
        super().__init__(id or f"box-{secrets.token_hex(6)}", spec, channel)
        self.number = number
        self.ends = backend.ends
        self._backend = backend

    async def _seal(self, kind: Literal["fs", "full"]) -> Snapshot:
        """Save the files (``fs``) or everything (``full``). The box and its processes go on either way."""
        return await self._backend.checkpoint(self, kind)

    async def _freeze(self) -> None:
        raise Unsupported(f"the {self._backend.name} backend cannot pause boxes")

    async def _retire(self) -> None:
        await self._backend.retire(self)

    def _is_gone(self) -> bool:
        return self._backend.is_gone(self)

    def _helper_is_gone(self) -> bool:
        return not self._backend.has(self)

    async def _end_of(self) -> str:
        return await self._backend.end_of(self)


B = TypeVar("B", bound=SupervisedBox)


class SupervisedBackend(Generic[B]):
    """Implements ``protocol.Backend``, apart from ``probe`` and ``create``.

    Belongs to the event loop that first uses it. Keeps one folder in ``root`` while it runs. ``ends``: the ways in
    which a box can end itself: start of the box supervisor's report -> error message.
    """

    name: str
    ends: ClassVar[Mapping[str, str]]

    def __init__(self, root: Path | None, max_starting: int, program: str, config: Mapping[str, Any]) -> None:
        self._root = root
        self._spawner = Spawner(root, self._forget, name=self.name, program=program, config=config)
        self._names = itertools.count(1)
        self._boxes: set[B] = set()
        self._snapshots: dict[str, BoxSpec] = {}
        self._starting = asyncio.Semaphore(max_starting)

    @convert_host_errors
    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """Make ``n`` boxes that go on from the snapshot independently."""
        spec = self._known(snapshot)
        return await all_or_none(self._resume(spec, snapshot) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot and remove its image; boxes forked from it go on."""
        self._known(snapshot)
        del self._snapshots[snapshot.id]
        await self._spawner.ask("release", name=snapshot.id)

    async def close(self) -> None:
        """End every box and the helper process."""
        self._forget()
        await self._spawner.close()

    @property
    def pid(self) -> int | None:
        """Process id of the box supervisor, for inspection."""
        return self._spawner.pid

    async def checkpoint(self, box: B, kind: Literal["fs", "full"]) -> Snapshot:
        """Make a snapshot of a box; called through ``box.snapshot``."""
        name = f"s{next(self._names)}"
        try:
            size = await self._save(box, name)
        except BaseException:
            with contextlib.suppress(SandboxError):  # the box supervisor is gone, and its folder with it
                await self._spawner.ask("release", name=name)
            raise
        self._snapshots[name] = box.spec
        return Snapshot(name, kind, self.name, None, size)

    async def retire(self, box: B) -> None:
        """End a box; called through ``box.close``."""
        if box in self._boxes:
            self._boxes.discard(box)
            await self._spawner.kill(box.number)

    def has(self, box: B) -> bool:
        """Return whether the box supervisor that owns the box still lives."""
        return box in self._boxes

    def is_gone(self, box: B) -> bool:
        return self._spawner.is_gone(box.number)

    async def end_of(self, box: B) -> str:
        """End a box that no longer answers, if it has not ended yet; return why it ended."""
        return await self._spawner.end_of(box.number)

    async def _resume(self, spec: BoxSpec, snapshot: Snapshot) -> B:
        """Make a box that goes on from a snapshot."""
        raise NotImplementedError

    async def _save(self, box: B, name: str) -> int:
        """Write the image ``name`` of a box, which goes on; return its size in bytes."""
        raise NotImplementedError

    def _known(self, snapshot: Snapshot) -> BoxSpec:
        if snapshot.backend != self.name or snapshot.id not in self._snapshots:
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of this {self.name} backend, or was dropped")
        return self._snapshots[snapshot.id]

    def _forget(self) -> None:
        """Drop all boxes and snapshots: the box supervisor is gone."""
        for box in self._boxes:
            box.hang_up()
        self._boxes.clear()
        self._snapshots.clear()
