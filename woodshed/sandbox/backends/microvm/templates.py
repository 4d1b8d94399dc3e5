"""Booted guests that boxes are forked from: a box costs a boot only if none like it has been made."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from typing import Any

from woodshed.sandbox.protocol import BoxSpec

_KEPT = 8


class Templates:
    """``boot(spec, name)`` makes the image ``name``; ``release(name)`` removes it. The oldest that nobody uses goes."""

    def __init__(
        self, boot: Callable[[BoxSpec, str], Coroutine[Any, Any, None]], release: Callable[[str], Awaitable[object]]
    ) -> None:
        self._boot, self._release = boot, release
        self._images: dict[Hashable, tuple[str, asyncio.Task[None]]] = {}  # by age of their last use
        self._users: Counter[str] = Counter()
        self._made = 0

    @asynccontextmanager
    async def of(self, spec: BoxSpec) -> AsyncIterator[str]:
        """Name of the image for ``spec``, kept while the context lasts. Raises what ``boot`` raises, and tries again
        the next time."""
        key = (spec.layers, spec.workdir, spec.limits, spec.preload)
        if key in self._images:
            name, task = self._images.pop(key)
        else:
            self._made += 1
            name = f"t{self._made}"
            task = asyncio.create_task(self._boot(spec, name))
        self._images[key] = name, task
        self._users[name] += 1
        try:
            try:
                await asyncio.shield(task)
            except BaseException:
                if task.done() and self._images.get(key) == (name, task):
                    del self._images[key]
                raise
            yield name
        finally:
            self._users[name] -= 1
            await self._trim()

    def forget(self) -> None:
        """The images are gone."""
        for _, task in self._images.values():
            task.cancel()
        self._images.clear()

    async def _trim(self) -> None:
        idle = [key for key, (name, task) in self._images.items() if task.done() and not self._users[name]]
        for key in idle[: max(0, len(self._images) - _KEPT)]:
            name, _ = self._images.pop(key)
            del self._users[name]
            with contextlib.suppress(Exception):  # with its keeper
                await self._release(name)
