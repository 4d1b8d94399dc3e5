"""Warm bases: what a task's boxes have in common, put into one box once and sealed as a snapshot that all fork from."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import xxhash

from woodshed.sandbox.protocol import BoxSpec, SandboxError, Snapshot

_FEW = 128 << 10
"""Bytes in a create call that a fork of a base would not beat."""
_PER_FILE = 1 << 10
"""What a file costs beside its bytes, in bytes."""
_REMEMBERED = 4096


@dataclass
class _Base:
    """``users``: forks under way, which its snapshot has to outlast."""

    making: asyncio.Task[Snapshot]
    users: int = 0

    def idle(self) -> bool:
        return self.users == 0 and self.making.done()


class Bases:
    """At most ``most`` snapshots, and ``most_bytes`` in them; the one used longest ago goes first.

    ``make`` builds and seals one, ``drop`` forgets one. ``made``, ``used`` and ``evicted`` count.
    """

    def __init__(
        self,
        make: Callable[[BoxSpec], Coroutine[Any, Any, Snapshot]],
        drop: Callable[[Snapshot], Awaitable[None]],
        *,
        most: int,
        most_bytes: int,
    ) -> None:
        self._make, self._drop, self._most, self._most_bytes = make, drop, most, most_bytes
        self._bases: OrderedDict[str, _Base] = OrderedDict()
        self._once: OrderedDict[str, None] = OrderedDict()
        self.made = self.used = self.evicted = 0

    def key(self, spec: BoxSpec) -> str | None:
        """Of a specification that a base may serve: heavy enough, and here for the second time at least. Else None."""
        if self._most == 0 or sum(map(len, spec.files.values())) + _PER_FILE * len(spec.files) < _FEW:
            return None
        key = _digest(spec)
        if key in self._bases or key in self._once:
            return key
        self._once[key] = None
        if len(self._once) > _REMEMBERED:
            self._once.popitem(last=False)
        return None

    @asynccontextmanager
    async def borrow(self, key: str, spec: BoxSpec) -> AsyncIterator[Snapshot]:
        """The base of that key, made now where there is none. One that fails its user is forgotten."""
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = _Base(asyncio.create_task(self._make(spec)))
            self.made += 1
        self._bases.move_to_end(key)
        base.users += 1
        try:
            yield await asyncio.shield(base.making)
            self.used += 1
        except Exception:
            if self._bases.get(key) is base:
                del self._bases[key]
            raise
        finally:
            base.users -= 1
            if self._bases.get(key) is not base and base.idle():
                await self._forget(base)
            while len(self._bases) > self._most or self._bytes() > self._most_bytes:
                if not await self.evict():
                    break

    async def evict(self) -> bool:
        """Forget the base that was used longest ago; False where all are in use, or there is none."""
        for key, base in self._bases.items():
            if base.idle():
                del self._bases[key]
                self.evicted += 1
                await self._forget(base)
                return True
        return False

    def clear(self) -> None:
        """The backend goes, and every snapshot with it."""
        for base in self._bases.values():
            base.making.cancel()
        self._bases.clear()

    def __len__(self) -> int:
        return len(self._bases)

    def _bytes(self) -> int:
        return sum(base.making.result().bytes for base in self._bases.values() if _made(base.making))

    async def _forget(self, base: _Base) -> None:
        if _made(base.making):
            with contextlib.suppress(SandboxError):  # it went with its helper process
                await self._drop(base.making.result())


def _made(task: asyncio.Task[Snapshot]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _digest(spec: BoxSpec) -> str:
    digest = xxhash.xxh3_128()
    for name in sorted(spec.files):
        digest.update(f"{len(name)}:{name}{len(spec.files[name])}:".encode("utf-8", "surrogatepass"))
        digest.update(spec.files[name])
    rest = (
        spec.layers,
        spec.workdir,
        sorted(spec.env.items()),
        spec.limits,
        spec.egress,
        spec.preload,
        spec.root,
        spec.image,
    )
    digest.update(repr(rest).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
