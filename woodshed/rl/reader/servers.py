"""Opens what a reader asks: another server, or the gateway of the run, where the policy itself answers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import httpx

from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.harness.endpoint import HttpEndpoint
from woodshed.harness.settings import RetrySettings
from woodshed.monitors.judge import judge_key

from .reader import Server
from .settings import POLICY, ReaderSettings

_GREEDY = {"temperature": 0.0}


@asynccontextmanager
async def open_server(
    settings: ReaderSettings, admin: GatewayAdmin, base_url: str, policy: str, client: httpx.AsyncClient
) -> AsyncIterator[Server]:
    """Yield the server of ``settings``. ``admin``, ``base_url`` and ``client``: of the gateway that serves ``policy``.
    Raises JudgeError if the key of another server is missing."""
    retry = RetrySettings(request_timeout=settings.timeout)
    if settings.base_url != POLICY:
        key = judge_key(settings, "rl.reader")
        endpoint = HttpEndpoint(settings.base_url, key, settings.model, sampling=_GREEDY, retry=retry)
        try:
            yield lambda id, schema: nullcontext(endpoint)  # not every server knows schemas; answers are checked anyway
        finally:
            await endpoint.close()
        return

    @asynccontextmanager
    async def own(id: str, schema: Mapping[str, Any]) -> AsyncIterator[HttpEndpoint]:
        """Open a conversation that is not kept, in which a grammar makes the policy answer by the schema."""
        key = await admin.open(id, source="eval")
        form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
        sampling = {**_GREEDY, "response_format": form}
        try:
            yield HttpEndpoint(base_url, key, policy, client, sampling=sampling, retry=retry)
        finally:
            with contextlib.suppress(GatewayError, httpx.HTTPError):
                await admin.delete(id)

    yield own
