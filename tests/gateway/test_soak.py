"""Trajectories that are over leave nothing behind: counted object by object, over real sockets.

``benchmarks/soak.py`` measures the memory of the processes over ten thousand.
"""

import asyncio
import gc
import os
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import uvicorn

from tests.engine.served import routed, serving
from woodshed.engine.protocol import Sampling
from woodshed.gateway import trajectories
from woodshed.gateway.app import build_app
from woodshed.gateway.journal import Journal
from woodshed.policy.formats import get_format

from .parts import ADMIN, COMPACT
from .soaking import soak
from .test_serve import tiny


def alive() -> Counter[str]:
    """Objects of ours, tasks and open files."""
    gc.collect()
    kinds = Counter(type(thing) for thing in gc.get_objects())
    found = Counter(
        {f"{t.__module__}.{t.__name__}": n for t, n in kinds.items() if str(t.__module__).startswith("woodshed")}
    )
    return found + Counter(tasks=len(asyncio.all_tasks()), files=len(os.listdir("/proc/self/fd")))


@pytest.mark.slow
def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "FINISHED", 4)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(serving(tiny(0), max_sessions=24)) for _ in range(2)]
            router = await stack.enter_async_context(routed(*engines))
            app = build_app(
                router, get_format("compact"), COMPACT, admin_key=ADMIN, journal=Journal(tmp_path), follow=router.follow
            )
            config = uvicorn.Config(
                app, port=0, http="httptools", lifespan="off", log_level="warning", timeout_keep_alive=75
            )
            server = uvicorn.Server(config)
            task = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"

            async def settled(first: int, count: int) -> Counter[str]:
                await soak(url, ADMIN, count, seed=5, first=first, done=lambda _: None)
                while any(engine.engine.stats()[k] for engine in engines for k in ("running", "sessions")):
                    await asyncio.sleep(0.02)
                for engine in engines:  # what waits to be released, and connections that are being closed
                    await engine.engine.generate([1, 2], Sampling(max_tokens=1))
                await asyncio.sleep(0.3)
                return alive()

            before = await settled(0, 30)
            after = await settled(30, 60)
            # Connections and caches of known sizes come and go by a few; sixty trajectories would show.
            grown = {name: n - before[name] for name, n in after.items() if n > before[name] + 8}
            assert not grown
            assert not router._placement._homes and not app.state.gateway.trajectories.by_id
            server.should_exit = True
            await task

    asyncio.run(main())
