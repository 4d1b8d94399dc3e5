"""Several boxes at once, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from woodshed.sandbox.protocol import Sandbox


async def all_or_none(starting: Iterable[Awaitable[Sandbox]]) -> list[Sandbox]:
    """The boxes; where one cannot be made the others are closed and its error is raised."""
    made = await asyncio.gather(*starting, return_exceptions=True)
    boxes = [m for m in made if not isinstance(m, BaseException)]
    failed = [m for m in made if isinstance(m, BaseException)]
    if failed:
        await asyncio.gather(*(box.close() for box in boxes))
        raise failed[0]
    return boxes
