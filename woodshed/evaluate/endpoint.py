"""Evaluation of a model behind any OpenAI-compatible URL, without a gateway of ours in between.

The built-in harness sends requests directly to the server. Tokens are not recorded, so a trajectory has no segments;
its token counts are those of the server's ``usage``. Tasks, boxes, tools and grading are the same as for our own
policies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

from woodshed.gateway.beginning import Beginning
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.key_limits import KeyLimits
from woodshed.gateway.segments_wire import Finished
from woodshed.record.trajectory import Source


class EndpointAdmin(GatewayAdmin):
    """Takes the place of a gateway's admin client in an ``Arena`` whose ``base_url`` is a foreign server.

    Every trajectory is opened with the server's own ``key``, and finishes without segments. Only the built-in agent
    works with it: a program in a box reaches nothing but a gateway.
    """

    def __init__(self, base_url: str, key: str, *, client: httpx.AsyncClient | None = None) -> None:
        super().__init__(base_url, key, client=client)
        self._key = key

    async def open(
        self,
        id: str,
        *,
        task: str = "",
        group: str = "",
        source: Source = "train",
        labels: Mapping[str, str] | None = None,
        limits: KeyLimits | None = None,
        beginning: Beginning | None = None,
    ) -> str:
        if limits is not None or beginning is not None:
            raise ValueError(
                "a foreign endpoint enforces no limits and continues no trajectory: use the built-in agent"
            )
        return self._key

    async def finish(self, id: str, *, messages: bool = False) -> Finished:
        return Finished(id, [])

    async def delete(self, id: str) -> None:
        return None

    async def engine(self) -> dict[str, Any]:
        return {}

    async def models(self) -> list[str]:
        """Return the names of the models that the server lists. Raises GatewayError or httpx.HTTPError."""
        found = (await self._call("GET", "/v1/models")).json()
        return [str(model["id"]) for model in found.get("data", [])]

    async def wait_until_up(self, seconds: float) -> bool:
        """Wait until the server gives any answer; return False if it does not within ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                await self._client.get(f"{self.base_url}/v1/models", headers=self._headers)
                return True
            except httpx.HTTPError:
                if time.monotonic() > deadline:
                    return False
            await asyncio.sleep(0.2)
