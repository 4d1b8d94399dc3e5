"""A place for rollouts of our agent: boxes, and a gateway in this process whose engine says what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from gateway.parts import ADMIN, HERMES

from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.journal import Journal
from woodshed.harness.settings import HarnessSettings
from woodshed.policy.formats import get_format
from woodshed.rollout.agent import BuiltinAgent
from woodshed.rollout.rollout import Arena
from woodshed.sandbox import open_backend
from woodshed.sandbox.layers import LayerStore
from woodshed.sandbox.protocol import Limits

Call = tuple[str, dict[str, Any]]


def call_texts(calls: Sequence[Call]) -> list[str]:
    """Replies of a policy, one for each call, in the format ``hermes``."""
    return [f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call><|im_end|>" for n, a in calls]


@asynccontextmanager
async def arena(
    engine: Any, layers: LayerStore, harness: HarnessSettings, *, attempts: int, journal: Journal | None = None
) -> AsyncIterator[Arena]:
    """An arena in front of ``engine``. Its gateway is lost at the end, like one that is killed."""
    backend = open_backend()
    app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN, journal=journal)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=300.0) as client:
        try:
            yield Arena(
                backend=backend,
                layers=layers,
                admin=GatewayAdmin("http://gateway", ADMIN, client=client),
                base_url="http://gateway",
                agent=BuiltinAgent(harness, client),
                policy="p",
                attempts=attempts,
                patience=5.0,
                limits=Limits(memory=1 << 30, disk=64 << 20),
            )
        finally:
            if journal is not None:
                journal.close()
            await backend.close()
