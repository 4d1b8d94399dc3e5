"""A box of the namespace backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from woodshed.sandbox.host.box import ChannelBox
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.egress.gate import Gate
from woodshed.sandbox.host.egress.rules import Record
from woodshed.sandbox.protocol import BoxSpec, Snapshot

if TYPE_CHECKING:
    from .backend import NamespaceBackend


@dataclass(frozen=True)
class Running:
    """The running processes of a box: number at the spawner, control connection, and gate for its egress if any."""

    number: int
    channel: Channel
    gate: Gate | None

    def hang_up(self) -> None:
        self.channel.close()
        if self.gate is not None:
            self.gate.close()


class NamespaceBox(ChannelBox):
    """A namespace box. Snapshots end the box's processes and keep its files, but not those in ``/dev/shm``."""

    no_memory_snapshots = "the namespace backend has no memory snapshots; use snapshot('fs'), or the gvisor backend"
    _backend: NamespaceBackend

    def __init__(
        self, backend: NamespaceBackend, spec: BoxSpec, chain: tuple[str, ...], record: Record, running: Running
    ) -> None:
        super().__init__(record.box, spec, running.channel)
        self.record = record
        self.chain = chain
        self.running = running
        self._backend = backend

    async def _seal(self, kind: Literal["fs", "full"]) -> Snapshot:
        """Seal the box's files as a layer that forks share. The box continues on top of it, but its processes end."""
        return await self._backend.seal(self)

    def stats(self) -> dict[str, Any]:
        own = super().stats()
        return {**own, "layers": own["layers"] + len(self.chain), "egress": dict(self.record.counts)}

    def hang_up(self) -> None:
        self.running.hang_up()

    async def _retire(self) -> None:
        await self._backend.retire(self)

    def _is_gone(self) -> bool:
        return self._backend.is_gone(self)

    def _helper_is_gone(self) -> bool:
        return not self._backend.has(self)

    async def _end_of(self) -> str:
        return await self._backend.end_of(self)

    def move(self, chain: tuple[str, ...], running: Running) -> None:
        """Switch to other processes and layers, after a snapshot."""
        self.chain, self.running, self.channel = chain, running, running.channel
