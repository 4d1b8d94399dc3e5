"""Warm bases: snapshots of what a task's boxes have in common, from which its boxes are forked."""

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

_MIN_BYTES = 128 << 10
"""Minimum bytes of a specification for a base; below that, a create call is faster than a fork."""
_BYTES_PER_FILE = 1 << 10
"""Cost of a file besides its content, expressed in bytes."""
_MAX_SEEN = 4096
"""Maximum number of remembered specifications that were requested once."""


@dataclass
class _Base:
    """A snapshot in the cache. ``users``: number of forks under way; meanwhile it must not be dropped."""

    making: asyncio.Task[Snapshot]
    users: int = 0

    def idle(self) -> bool:
        return self.users == 0 and self.making.done()


class Bases:
    """LRU cache of at most ``most`` snapshots that hold at most ``most_bytes`` together.

    ``make`` builds a box and snapshots it, ``drop`` forgets a snapshot. ``made``, ``used`` and ``evicted`` are counts.
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
        """Return the key of a specification that a base should serve (large and requested before), else None."""
        size = sum(map(len, spec.files.values())) + _BYTES_PER_FILE * len(spec.files)
        if self._most == 0 or size < _MIN_BYTES:
            return None
        key = _digest(spec)
        if key in self._bases or key in self._once:
            return key
        self._once[key] = None
        if len(self._once) > _MAX_SEEN:
            self._once.popitem(last=False)
        return None

    @asynccontextmanager
    async def borrow(self, key: str, spec: BoxSpec) -> AsyncIterator[Snapshot]:
        """Provide the base of ``key``, making it if there is none. A base whose use fails is forgotten."""
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
        """Forget the base that was used longest ago. Returns False if all are in use or there is none."""
        for key, base in self._bases.items():
            if base.idle():
                del self._bases[key]
                self.evicted += 1
                await self._forget(base)
                return True
        return False

    def clear(self) -> None:
        """Forget all bases without dropping their snapshots: the backend is about to be closed."""
        for base in self._bases.values():
            base.making.cancel()
        self._bases.clear()

    def __len__(self) -> int:
        return len(self._bases)

    def _bytes(self) -> int:
        return sum(base.making.result().bytes for base in self._bases.values() if _made(base.making))

    async def _forget(self, base: _Base) -> None:
        if _made(base.making):
            with contextlib.suppress(SandboxError):  # it was lost with its helper process
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
