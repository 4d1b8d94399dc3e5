"""Leases of the clients of a box server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from woodshed.sandbox.protocol import Backend, Sandbox
from woodshed.sandbox.remote.leases import Leases


class SlowBox:
    """A box that is closed once ``may_close`` is set."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.closing, self.may_close = asyncio.Event(), asyncio.Event()

    async def close(self) -> None:
        self.closing.set()
        await self.may_close.wait()


def test_a_client_that_comes_back_while_another_is_ended_keeps_its_boxes() -> None:
    async def main() -> None:
        leases = Leases(cast(Backend, None), 0.5)
        box, kept = SlowBox("a"), SlowBox("b")
        for name, one in (("gone", box), ("slow", kept)):
            leases.of(name).add(f"token-{name}", [cast(Sandbox, one)])
        watching = asyncio.create_task(leases.watch())
        try:
            await box.closing.wait()
            lease: Any = leases.of("slow")
            assert lease.boxes, "ended before it came back"
            box.may_close.set()
            for _ in range(50):  # the end of the other, and what follows it without a pause
                await asyncio.sleep(0)
            assert list(lease.boxes) == ["b"] and not kept.closing.is_set()
        finally:
            kept.may_close.set()
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    asyncio.run(main())
