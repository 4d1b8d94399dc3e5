"""What a key may use, and how it is sampled, whatever its client asks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from woodshed.engine.protocol import Sampling
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.errors import ApiError, ContextTooLong
from woodshed.gateway.journal import Journal
from woodshed.gateway.key_limits import MAX_CONCURRENT_REQUESTS, KeyLimits, KeyUsage
from woodshed.policy.formats import get_format

from .parts import ADMIN, HERMES, ScriptedEngine
from .sockets import listening

ASKED = Sampling(
    max_tokens=100,
    temperature=0.1,
    top_p=0.5,
    top_k=7,
    min_p=0.2,
    seed=3,
    logit_bias={4: 1.0},
    presence_penalty=1.0,
    frequency_penalty=1.0,
    repetition_penalty=1.5,
)
USED = KeyUsage(2, 40)


def test_without_terms_a_client_has_its_way() -> None:
    KeyLimits().check(KeyUsage(1000, 10**6, 10**6), 10)
    assert KeyLimits().apply(ASKED, USED, 10**6) == ASKED and not KeyLimits().bounded


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"turn_tokens": 30}, 30), ({"turn_tokens": 300}, 100), ({"sampled_tokens": 90}, 50),
        ({"sampled_tokens": 41}, 1), ({"context_tokens": 70}, 20), ({"context_tokens": 70, "turn_tokens": 5}, 5),
    ],
)  # fmt: skip
def test_a_reply_has_at_most_what_is_left(limits: dict[str, int], most: int) -> None:
    assert KeyLimits(**limits).apply(ASKED, USED, 50).max_tokens == most
    assert KeyLimits(**limits).apply(ASKED, KeyUsage(2, 30, 10), 50).max_tokens == most


def test_a_temperature_means_the_whole_distribution() -> None:
    sampled = KeyLimits(temperature=1.0, seed=9).apply(ASKED, KeyUsage(), 0)
    assert sampled == Sampling(max_tokens=100, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=9)


def test_a_temperature_comes_with_the_truncation_of_the_key() -> None:
    sampled = KeyLimits(temperature=1.0, top_p=0.9, top_k=40, min_p=0.01).apply(ASKED, KeyUsage(), 0)
    assert (sampled.top_p, sampled.top_k, sampled.min_p, sampled.logit_bias) == (0.9, 40, 0.01, {})


def test_what_is_used_up_is_refused() -> None:
    for limits in (KeyLimits(turns=3), KeyLimits(sampled_tokens=40)):
        with pytest.raises(ApiError, match="this key may") as refused:
            limits.check(USED, 1)
        assert (refused.value.status, refused.value.code) == (403, "limit_reached")
    with pytest.raises(ContextTooLong):
        KeyLimits(context_tokens=50).apply(ASKED, KeyUsage(), 50)
    with pytest.raises(ApiError) as flood:
        KeyLimits().check(KeyUsage(), MAX_CONCURRENT_REQUESTS)
    assert flood.value.status == 429
    with pytest.raises(ApiError, match="reserved all its remaining tokens") as held:
        KeyLimits(sampled_tokens=50).check(KeyUsage(2, 40, 10), 1)
    assert held.value.status == 429


def test_over_http() -> None:
    async def main() -> None:
        engine = ScriptedEngine(lambda _: HERMES.encode("Good.<|im_end|>", allow_special=True))
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            admin = GatewayAdmin("http://gateway", ADMIN, client=client)
            with pytest.raises(GatewayError, match=r"limits\.turns: Input should be greater"):
                await admin._call("POST", "/admin/trajectories", {"id": "x", "limits": {"turns": -1}})
            with pytest.raises(GatewayError, match=r"limits\.turn: Extra inputs"):
                await admin._call("POST", "/admin/trajectories", {"id": "x", "limits": {"turn": 1}})
            key = await admin.open("t", limits=KeyLimits(turns=2, feedback=False))
            headers = {"authorization": f"Bearer {key}"}
            body: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
            statuses = [
                (await client.post("/v1/chat/completions", json=body, headers=headers)).status_code for _ in range(3)
            ]
            assert statuses == [200, 200, 403]
            assert (await client.post("/v1/feedback", json={"kind": "praise"}, headers=headers)).status_code == 403
            finished = await admin.finish("t", messages=True)
            assert finished.requests == 2 and list(finished.refusals) == ["limit_reached"]
            assert finished.refusals["limit_reached"][0] == 403 and finished.feedback == []
            assert [turn["sampled_tokens"] for turn in finished.usage] == [len(c.tokens) for _, _, c in engine.calls]
            assert [m["role"] for m in finished.messages[0]] == ["user", "assistant"]
            assert (await admin.finish(await opened(admin))).messages == []

    asyncio.run(main())


async def opened(admin: GatewayAdmin) -> str:
    await admin.open("u")
    return "u"


async def ask(client: httpx.AsyncClient, key: str, number: int, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": f"Hello {number}"}], **fields}
    return await client.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})


def test_requests_at_once_share_what_is_left() -> None:
    async def main() -> None:
        engine = ScriptedEngine(lambda _: HERMES.encode("Good. " * 100))
        engine.gate = asyncio.Event()
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            admin = GatewayAdmin("http://gateway", ADMIN, client=client)
            key = await admin.open("t", limits=KeyLimits(sampled_tokens=50))
            first = [asyncio.create_task(ask(client, key, i, max_tokens=20)) for i in range(8)]
            while len(engine.samplings) + sum(task.done() for task in first) < 8:
                await asyncio.sleep(0)
            assert [s.max_tokens for s in engine.samplings] == [20, 20, 10]
            engine.gate.set()
            statuses = [response.status_code for response in await asyncio.gather(*first)]
            assert sorted(statuses) == [200] * 3 + [429] * 5
            assert (await ask(client, key, 9)).status_code == 403
            finished = await admin.finish("t")
            assert sum(turn["sampled_tokens"] for turn in finished.usage) == 50
            assert {code: status for code, (status, _) in finished.refusals.items()} == {
                "too_many_requests": 429,
                "limit_reached": 403,
            }
            key = await admin.open("u", limits=KeyLimits(sampled_tokens=50))
            assert (await ask(client, key, 0, max_tokens=30)).status_code == 200
            engine.say = lambda _: HERMES.encode("Good.<|im_end|>", allow_special=True)
            said = await ask(client, key, 1, max_tokens=30)
            assert said.status_code == 200, "what a reply did not need is there for the next"
            assert engine.samplings[-1].max_tokens == 20
            assert (await ask(client, key, 2, max_tokens=30)).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(("limits", "most"), [(KeyLimits(turns=3), (0, 3)), (KeyLimits(sampled_tokens=60), (1, 60))])
def test_reading_and_leaving_is_not_free(tmp_path: Path, limits: KeyLimits, most: tuple[int, int]) -> None:
    """A client that reads a part of each stream and goes away comes to its limit, and a restart does not help it."""

    async def life(key: str) -> str:
        engine = ScriptedEngine(lambda _: HERMES.encode("Good. " * 1000))
        journal = Journal(tmp_path)
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN, journal=journal)
        async with listening(app) as (url, _), httpx.AsyncClient(base_url=url) as client:
            if not key:
                key = await GatewayAdmin(url, ADMIN, client=client).open("t", limits=limits)
                trajectory = app.state.gateway.trajectories.by_id["t"]
                headers = {"authorization": f"Bearer {key}"}
                body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 2000}
                engine.delay = 0.005
                while True:
                    call = client.stream("POST", "/v1/chat/completions", json=body, headers=headers)
                    async with call as response:
                        if response.status_code != 200:
                            break
                        async for _ in response.aiter_raw():
                            break
                    while trajectory.running:
                        await asyncio.sleep(0.001)
                    assert trajectory.key_usage()[most[0]] <= most[1]
                assert response.status_code == 403 and trajectory.abandoned.turns > 0
                assert trajectory.key_usage()[most[0]] == most[1]
            refused = await ask(client, key, 1)
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "limit_reached")
        journal.close()
        return key

    key = asyncio.run(life(""))
    asyncio.run(life(key))
