"""A gateway over real sockets in front of a real engine with a random policy, for OpenAI's client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai

from tests.engine.models import decoder
from woodshed.engine.grammar import Grammars
from woodshed.engine.local import LocalEngine
from woodshed.engine.settings import EngineSettings
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.key_limits import KeyLimits
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder
from woodshed.policy.formats import get_format

from .parts import ADMIN, HERMES
from .sockets import listening

CONFIG = DecoderConfig(
    vocab_size=HERMES.vocab_size,
    d_model=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    d_ff=64,
    max_positions=2048,
)
PLAIN = {str(i): -100 for i in HERMES.special_ids.values()}
"""A bias without which random weights begin thoughts and calls that have no end."""


def policy() -> Decoder:
    return decoder(CONFIG, sharpness=8.0)


class Chatty:
    """The parts of one test: ``client`` has the key of trajectory ``t``."""

    def __init__(self, url: str, app: Any, engine: LocalEngine, admin: GatewayAdmin, key: str) -> None:
        self.url, self.engine, self.admin, self.key = url, engine, admin, key
        self.gateway = app.state.gateway
        self.client = openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0)

    async def chat(self, **fields: Any) -> Any:
        given: Any = {"model": "m", "messages": [{"role": "user", "content": "fix it"}], "max_tokens": 12, "seed": 7}
        return await self.client.chat.completions.create(**{**given, "logit_bias": PLAIN, **fields})


@asynccontextmanager
async def chatty(
    source: str = "live", limits: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Chatty]:
    local = LocalEngine(policy(), settings=EngineSettings(**(engine or {})), grammars=Grammars.of(HERMES))
    app = build_app(
        local, get_format("hermes"), HERMES, admin_key=ADMIN, settings=GatewaySettings.model_validate(settings)
    )
    try:
        async with listening(app) as (url, _), httpx.AsyncClient(base_url=url) as http:
            admin = GatewayAdmin(url, ADMIN, client=http)
            made = Chatty(
                url, app, local, admin, await admin.open("t", source=source, limits=KeyLimits(**(limits or {})))
            )
            async with made.client:
                yield made
    finally:
        await local.close()
