"""A box host that takes long to close one box still serves the others."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from woodshed.cluster.service import listen
from woodshed.sandbox.guest.frames import encode
from woodshed.sandbox.remote.host import Host

STATE = {
    "instance": "one",
    "backend": "namespace",
    "seconds": 60.0,
    "max_body": 1 << 20,
    "processors": 1,
    "short": "",
    "capabilities": [],
    "egress": [],
    "living": 1,
}


def test_a_slow_close_loses_no_other_box() -> None:
    """Closing a box that was given up takes longer than the time in which a silent host counts as lost."""

    async def main() -> None:
        abandoned, renewed = asyncio.Event(), asyncio.Condition()

        async def lease(request: Request) -> Response:
            async with renewed:
                renewed.notify_all()
            return Response(encode(STATE))

        async def close(request: Request) -> Response:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
            abandoned.set()
            return Response(encode({"living": 1}))

        async def command(request: Request) -> Response:
            await abandoned.wait()
            async with renewed:
                await renewed.wait()
            return Response(encode({"living": 1, "said": "on"}))

        routes = [("/lease", lease), ("/boxes/slow/close", close), ("/boxes/other/exec", command)]
        app = Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in routes])
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            serving = asyncio.create_task(
                listen(app, host="127.0.0.1", port=0, shutdown_seconds=0, stack=stack, announce=url.set_result)
            )
            host = Host(await url, "key-of-this-test", "namespace", None, silence=0.5)
            await host.open()
            host.unclosed.add("slow")
            reply, _ = await host.ask("/boxes/other/exec", {})
            assert reply["said"] == "on"
            await host.close()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(main())
