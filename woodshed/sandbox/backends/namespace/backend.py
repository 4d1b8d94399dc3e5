"""The default backend: Linux namespaces and overlayfs from plain Python, without a daemon and without root.

``create`` and ``fork`` cost the same and copy nothing: a box is one clone of the fork server with an overlay of shared
read-only layers. A snapshot turns the box's writable layer into one more of those. See ``fork_server`` and ``init``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import sys
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from woodshed.record.jsonl import JsonLines
from woodshed.sandbox.faults import convert_host_errors
from woodshed.sandbox.guest.frames import pack_files
from woodshed.sandbox.host.channel import Channel
from woodshed.sandbox.host.egress.gate import PROXY_ENVIRONMENT, Gate, ports_of
from woodshed.sandbox.host.egress.rules import Record
from woodshed.sandbox.host.probing import probe_by
from woodshed.sandbox.host.spawner import Spawner
from woodshed.sandbox.host.supervised import all_or_none
from woodshed.sandbox.protocol import BoxSpec, Probe, Sandbox, SandboxError, Snapshot, Unsupported

from . import probe
from .box import NamespaceBox, Running

MAX_CHAIN = 40
"""Maximum number of snapshots on top of each other: overlayfs takes the list of layers in one page of options."""


class NamespaceBackend:
    """Makes boxes. Belongs to the event loop that first uses it. Keeps one (empty) folder in ``root`` while it runs.

    ``cgroups``: give boxes control groups if this process may make any. Limits hold without them, but memory that
    the kernel uses for processes is then not counted. ``egress_log``: file that gets a line for every request of a box
    to the outside; a box's ``stats`` count these requests too.
    """

    name = "namespace"

    def __init__(
        self, root: Path | None = None, *, max_starting: int = 16, egress_log: Path | None = None, cgroups: bool = True
    ) -> None:
        self._spawner = Spawner(root, self._forget, config={"cgroups": cgroups})
        self._root, self._cgroups = root, cgroups
        self._names = itertools.count(1)
        self._boxes: set[NamespaceBox] = set()
        self._snapshots: dict[str, tuple[BoxSpec, tuple[str, ...]]] = {}
        self._references: Counter[str] = Counter()
        self._starting = asyncio.Semaphore(max_starting)
        self._egress_log = JsonLines(egress_log) if egress_log is not None else None

    def probe(self) -> Probe:
        """Try out what works here; cached for the process."""
        return probe_namespace(self._root, self._cgroups)

    async def create(self, spec: BoxSpec) -> NamespaceBox:
        """Create a box. Raises SandboxError naming the layer, module or system call that failed."""
        if spec.image:
            raise Unsupported("the namespace backend runs no images of container engines; give a root instead")
        return await self._make(spec, ())

    async def fork(self, snapshot: Snapshot, n: int = 1) -> list[Sandbox]:
        """Make ``n`` boxes that start from the snapshot's files and share them."""
        spec, chain = self._known(snapshot)
        return await all_or_none(self._make(replace(spec, files={}), chain) for _ in range(n))

    async def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; its files are removed when no box and no later snapshot needs them."""
        _, chain = self._known(snapshot)
        del self._snapshots[snapshot.id]
        await self._release(chain)

    async def close(self) -> None:
        """End every box and the helper process."""
        self._forget()
        await self._spawner.close()

    @property
    def pid(self) -> int | None:
        """Process id of the fork server, for inspection."""
        return self._spawner.pid

    @property
    def privileged(self) -> bool:
        """True if real root set the boxes up (they run as an ordinary user either way)."""
        return self._spawner.privileged

    @property
    def users(self) -> bool:
        """True if every box has a host user of its own. Known with the first box."""
        return self._spawner.users

    @property
    def cgroups(self) -> str:
        """``v1`` or ``v2`` if boxes have control groups, else an empty string. Known with the first box."""
        return self._spawner.cgroups

    async def seal(self, box: NamespaceBox) -> Snapshot:
        """Make a snapshot of a box; called through ``box.snapshot``."""
        if len(box.chain) >= MAX_CHAIN:
            raise Unsupported(f"{box.id}: {MAX_CHAIN} snapshots lie on top of each other; start from a fresh box")
        name = f"s{next(self._names)}"
        reply, _ = await box.running.channel.request({"op": "seal"})
        await self._spawner.ask("adopt", name=name, box=box.running.number)
        chain = (name, *box.chain)
        parent = box.chain[0] if box.chain else None
        self._references.update(chain)  # of the snapshot
        self._references.update(chain)  # of the box, which goes on above it
        old, old_chain = box.running, box.chain
        try:
            running = await self._start(box.spec, chain, box.record, with_files=False)
        except BaseException:
            await self._release(chain + chain)
            raise
        box.move(chain, running)
        old.hang_up()
        await self._spawner.kill(old.number)
        await self._release(old_chain)
        self._snapshots[name] = (box.spec, chain)
        return Snapshot(name, "fs", self.name, parent, int(reply.get("bytes", 0)))

    async def retire(self, box: NamespaceBox) -> None:
        """End a box; called through ``box.close``."""
        if box in self._boxes:
            self._boxes.discard(box)
            await self._spawner.kill(box.running.number)
            self._spawner.reason(box.running.number)  # discarded, because nobody asks for it any more
            await self._release(box.chain)

    def has(self, box: NamespaceBox) -> bool:
        """Return whether the fork server that owns the box still lives."""
        return box in self._boxes

    def is_gone(self, box: NamespaceBox) -> bool:
        return self._spawner.is_gone(box.running.number)

    async def end_of(self, box: NamespaceBox) -> str:
        """End a box that no longer answers, if it has not ended yet; return why it ended."""
        return await self._spawner.end_of(box.running.number)

    async def _make(self, spec: BoxSpec, chain: tuple[str, ...]) -> NamespaceBox:
        record = Record(f"box-{secrets.token_hex(6)}", self._egress_log)
        self._references.update(chain)
        try:
            running = await self._start(spec, chain, record, with_files=True)
        except BaseException:
            await self._release(chain)
            raise
        box = NamespaceBox(self, spec, chain, record, running)
        self._boxes.add(box)
        return box

    @convert_host_errors  # here and not on create, as a snapshot restarts its box too
    async def _start(self, spec: BoxSpec, chain: tuple[str, ...], record: Record, *, with_files: bool) -> Running:
        listen = ports_of(spec.egress) if spec.egress is not None else None
        await self._spawner.start()
        limits = spec.limits
        environment = PROXY_ENVIRONMENT if spec.egress is not None and spec.egress.allow else {}
        message: dict[str, Any] = {
            "layers": [str(Path(layer).resolve()) for layer in (*filter(None, [spec.root]), *spec.layers)],
            "whole": spec.root is not None,
            "snapshots": list(chain),
            "workdir": spec.workdir,
            "env": {**environment, **spec.env},
            "preload": list(spec.preload),
            "memory": limits.memory,
            "processes": limits.processes,
            "cpu": limits.cpu_seconds,
            "file_size": limits.file_size,
            "disk": limits.disk,
            "listen": listen,
        }
        table, body = pack_files(list(spec.files.items()) if with_files else [])
        async with self._starting:
            ours, theirs = socket.socketpair()
            taking, offering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with taking:
                with theirs, offering:
                    channel = await Channel.open(ours)  # first: nothing waits between the request and its try below
                    try:
                        number = await self._spawner.create(message, theirs.fileno(), offering.fileno())
                    except BaseException:
                        channel.close()
                        raise
                gate = Gate(spec.egress, record) if spec.egress is not None else None
                try:
                    # After a snapshot, whatever the box left in place of its workdir stays, even nothing.
                    await channel.request({"op": "put", "files": table, "workdir": not chain}, body)
                    if gate is not None:
                        await gate.listen(taking)
                    self._spawner.confirm(number)
                except BaseException as error:
                    Running(number, channel, gate).hang_up()
                    raise await self._spawner.failure(number, error) from None
        return Running(number, channel, gate)

    def _known(self, snapshot: Snapshot) -> tuple[BoxSpec, tuple[str, ...]]:
        if snapshot.backend != self.name or snapshot.id not in self._snapshots:
            raise SandboxError(f"snapshot {snapshot.id!r} is not one of this {self.name} backend, or was dropped")
        return self._snapshots[snapshot.id]

    def _forget(self) -> None:
        """Drop all boxes and snapshots: the fork server died. Using one raises SandboxError; new ones can be made.

        Hanging up ends the first process of a box even if the fork server died before that process had set its
        parent-death signal.
        """
        for box in self._boxes:
            box.hang_up()
        self._boxes.clear()
        self._snapshots.clear()
        self._references.clear()

    async def _release(self, chain: tuple[str, ...]) -> None:
        """Remove the snapshots of ``chain`` that nothing else needs, all of them also if this is cancelled."""
        unused = []
        for name in chain:
            if name not in self._references:
                continue  # it was lost with its fork server
            self._references[name] -= 1
            if self._references[name] == 0:
                del self._references[name]
                unused.append(self._spawner.ask("release", name=name))
        await asyncio.shield(asyncio.gather(*unused))


@lru_cache(maxsize=8)
def probe_namespace(root: Path | None = None, cgroups: bool = True) -> Probe:
    """Probe by creating a box, running commands, writing a file, taking a snapshot and forking it, within 30 s.

    Callable from any thread.
    """
    if sys.platform != "linux":
        return Probe(False, (f"namespaces exist on Linux only, this is {sys.platform}",))
    if not hasattr(os, "pidfd_open"):
        return Probe(False, ("this Python was built without pidfd_open",))
    return probe_by(lambda: NamespaceBackend(root, cgroups=cgroups), probe.attempt, probe.SECONDS)
