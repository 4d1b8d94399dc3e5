"""A file that is written in a thread and then sent in pieces, so that no layer is ever held in memory."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import BinaryIO

_PIECE = 1 << 20


@asynccontextmanager
async def spooled(write: Callable[[BinaryIO], None]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Pieces of what ``write`` wrote."""
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(write, file)
        file.seek(0)

        async def pieces() -> AsyncIterator[bytes]:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece

        yield pieces()
