"""Services listen on the address that they are given."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from woodshed.cluster.service import listen
from woodshed.cluster.supervisor import free_ports


@pytest.mark.parametrize("host", ("127.0.0.1", "::1"))
def test_a_service_answers_at_the_url_that_it_announces(host: str) -> None:
    """Box servers on Ray nodes may have IPv6 addresses."""
    if ":" in host:
        try:
            socket.create_server((host, 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
    (port,) = free_ports(1, host)

    async def main() -> str:
        app = Starlette(routes=[Route("/health", lambda request: PlainTextResponse("ok"))])
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with contextlib.AsyncExitStack() as stack:
            serving = asyncio.create_task(
                listen(app, host=host, port=port, shutdown_seconds=0, stack=stack, announce=url.set_result)
            )
            await asyncio.wait((serving, url), return_when=asyncio.FIRST_COMPLETED)
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.get(f"{url.result()}/health")
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        return answer.text

    assert asyncio.run(main()) == "ok"
