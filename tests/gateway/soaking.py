"""Many short trajectories through a gateway, as agents and impatient people make them: for the tests and for
``benchmarks/soak.py``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import httpx

from woodshed.gateway.client import GatewayAdmin

TEXT = "read the file and say what is wrong with it, then go on with the next one "
WORDS = TEXT.split()


async def one(admin: GatewayAdmin, http: httpx.AsyncClient, id: str, rng: random.Random) -> None:
    """A trajectory of some turns: edited histories, streams that are left, feedback; finished or forgotten."""
    key = await admin.open(id, task="soak", group=id[:3])
    headers = {"authorization": f"Bearer {key}"}
    messages: list[dict[str, Any]] = [{"role": "user", "content": " ".join(rng.choices(WORDS, k=rng.randint(3, 20)))}]
    for _ in range(rng.randint(1, 4)):
        body = {"messages": messages, "max_tokens": rng.randint(1, 24)}
        kind = rng.random()
        if kind < 0.1:  # a client that leaves in the middle
            async with http.stream(
                "POST", "/v1/chat/completions", json={**body, "max_tokens": 200, "stream": True}, headers=headers
            ) as response:
                async for _ in response.aiter_raw():
                    break
            continue
        stop = {"stop": "e"} if kind < 0.2 else {}
        answer = await http.post("/v1/chat/completions", json={**body, **stop}, headers=headers)
        if answer.status_code != 200:
            assert answer.json()["error"]["code"] == "context_length_exceeded", answer.text
            break
        if kind > 0.9:  # compaction: another beginning
            messages = [{"role": "user", "content": "short " + " ".join(rng.choices(WORDS, k=3))}]
        else:
            messages = [*messages, answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
    if rng.random() < 0.2:
        await http.post("/v1/feedback", json={"kept": True}, headers=headers)
    if rng.random() < 0.1:
        await admin.delete(id)
    else:
        await admin.finish(id)


async def soak(
    url: str, admin_key: str, count: int, *, seed: int, done: Callable[[int], None], at_once: int = 16, first: int = 0
) -> None:
    """``count`` trajectories, numbered from ``first``; ``done`` hears how many there were."""
    waiting = list(range(first, first + count))[::-1]
    limits = httpx.Limits(max_connections=None, keepalive_expiry=4.0)
    async with (
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, limits=limits) as http,
        GatewayAdmin(url, admin_key, client=http) as admin,
    ):

        async def worker() -> None:
            while waiting:
                number = waiting.pop()
                await one(admin, http, f"soak-{number}", random.Random(f"{seed}-{number}"))
                done(first + count - len(waiting))

        await asyncio.gather(*(worker() for _ in range(min(at_once, count))))
        assert await admin.list() == []
