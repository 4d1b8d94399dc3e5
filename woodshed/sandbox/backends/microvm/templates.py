"""Templates: booted guests that boxes are forked from; and copying a stopped guest's memory.

A copy of memory consists of the file that it was mapped from and the pages changed since. Unchanged pages exist once,
in the page cache; changed ones are private to the process. In /proc/PID/pagemap bit 61 is set for a page of the file,
bit 63 (62) for one that is present (swapped out); see Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from woodshed.sandbox.protocol import BoxSpec

_MAX_TEMPLATES = 8


class Templates:
    """LRU cache of templates. ``boot(spec, name)`` makes the image ``name``; ``release(name)`` removes it."""

    def __init__(
        self, boot: Callable[[BoxSpec, str], Coroutine[Any, Any, None]], release: Callable[[str], Awaitable[object]]
    ) -> None:
        self._boot, self._release = boot, release
        self._images: dict[Hashable, tuple[str, asyncio.Task[None]]] = {}  # least recently used first
        self._users: Counter[str] = Counter()
        self._made = 0

    @asynccontextmanager
    async def of(self, spec: BoxSpec) -> AsyncIterator[str]:
        """Provide the name of the image for ``spec``, kept while the context lasts.

        Raises what ``boot`` raises; the next call tries again."""
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
        """Forget all templates: their images are gone."""
        for _, task in self._images.values():
            task.cancel()
        self._images.clear()

    async def _trim(self) -> None:
        idle = [key for key, (name, task) in self._images.items() if task.done() and not self._users[name]]
        for key in idle[: max(0, len(self._images) - _MAX_TEMPLATES)]:
            name, _ = self._images.pop(key)
            del self._users[name]
            with contextlib.suppress(Exception):  # it may be gone with its box supervisor
                await self._release(name)


_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRIES = 512  # entries of the page map read at once: 2 MiB of memory
_OF_FILE, _THERE = 1 << 61, 3 << 62
_PIECE = 4 << 20


def copy_memory(pid: int, source: int, target: int) -> None:
    """Write the memory of the stopped machine ``pid``, mapped privately from the open file ``source``, to ``target``.

    Holes in ``source`` stay holes. Raises OSError, also if the process does not map that file.
    """
    os.ftruncate(target, os.fstat(source).st_size)
    _copy_file(source, target)
    found = False
    pages = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, end, offset in _mappings(pid, source):
            found = True
            for first, count in _changed(pages, start // _PAGE, end // _PAGE):
                _copy_range(memory, first * _PAGE, target, first * _PAGE - start + offset, count * _PAGE)
    finally:
        os.close(pages)
        os.close(memory)
    if not found:
        raise OSError(errno.ESRCH, f"process {pid} has no memory of a guest")


def _mappings(pid: int, source: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first address, end, offset in the file) of the process's mappings of the file."""
    inode = os.fstat(source).st_ino
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            addresses, mode, offset, _, number = line.split()[:5]
            if int(number) == inode and mode.endswith("p"):
                start, end = (int(each, 16) for each in addresses.split("-"))
                yield start, end, int(offset, 16)


def _changed(pagemap: int, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield runs (page, count) of pages that are private to the process."""
    for base in range(first, end, _ENTRIES):
        data = os.pread(pagemap, 8 * min(_ENTRIES, end - base), 8 * base)
        if data.count(0) == len(data):
            continue
        run = 0
        for number, entry in enumerate(array("Q", data)):
            if entry & _THERE and not entry & _OF_FILE:
                run += 1
            elif run:
                yield base + number - run, run
                run = 0
        if run:
            yield base + len(data) // 8 - run, run


def _copy_file(source: int, target: int) -> None:
    at, size = 0, os.fstat(source).st_size
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole from here to the end
                return
            raise
        end = os.lseek(source, at, os.SEEK_HOLE)
        _copy_range(source, at, target, at, end - at)
        at = end


def _copy_range(source: int, at: int, target: int, to: int, length: int) -> None:
    while length:
        data = os.pread(source, min(length, _PIECE), at)
        if not data:
            raise OSError(errno.EIO, "the memory of the guest ends early")
        written = os.pwrite(target, data, to)
        at, to, length = at + written, to + written, length - written
