"""A box server as a program: ``woodshed boxes``. On SIGTERM every box ends with it."""

from __future__ import annotations

import asyncio
import contextlib

from woodshed.cluster.service import read_admin_key
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.opening import open_pool

from .settings import BoxServerSettings


def main(settings: BoxServerSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises ValueError, SandboxError or OSError before the first request."""
    import uvloop

    uvloop.run(serve(settings))


async def serve(settings: BoxServerSettings) -> None:
    """Answer requests, in the running event loop; refuses to start where the backend does not work here."""
    from woodshed.cluster.service import listen

    from .service import Service

    admin_key = read_admin_key(settings.admin_key_file)
    settings.state.mkdir(parents=True, exist_ok=True)
    log = settings.state / "egress.jsonl"
    async with contextlib.AsyncExitStack() as stack:
        pool = open_pool(settings.sandbox, log)
        stack.push_async_callback(pool.close)
        probe = await asyncio.to_thread(pool.probe)
        if not probe.ok:
            raise ValueError(f"{pool.name} boxes do not work here: " + "; ".join(probe.reasons))
        service = Service(pool, probe, LayerStore(settings.state / "layers"), log, settings)
        watching = asyncio.create_task(service.leases.watch())
        stack.callback(watching.cancel)
        await listen(
            service.application(admin_key),
            host=settings.host,
            port=settings.port,
            shutdown_seconds=settings.shutdown_seconds,
            stack=stack,
        )
