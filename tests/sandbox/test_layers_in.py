"""A box server that cannot store a layer says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from disks import small_disk
from starlette.applications import Starlette
from starlette.routing import Route

from woodshed.cluster.service import AdminKey
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.remote.host import refused
from woodshed.sandbox.remote.transfer import LayersIn

KEY = "key-of-this-test"


def test_a_full_disk_of_a_host_is_named(tmp_path: Path) -> None:
    """Clients read the path and the reason."""
    with small_disk(tmp_path / "disk", kib=64) as disk:
        layers = LayersIn(LayerStore(disk.place / "layers"), AdminKey(KEY), max_layer=1 << 20)
        app = Starlette(routes=[Route("/layers/{name}", layers, methods=["GET", "PUT"])])

        async def put() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as http:
                headers = {"authorization": f"Bearer {KEY}"}
                return await http.put(f"/layers/x-{'0' * 24}", content=bytes(1 << 20), headers=headers)

        answer = asyncio.run(put())
        assert "No space left on device" in str(refused("http://host", answer)), answer.text
