"""What a key may use, and how it is sampled, whatever its client asks for."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from woodshed.engine.protocol import Sampling
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin, GatewayError
from woodshed.gateway.errors import ApiError, ContextTooLong
from woodshed.gateway.terms import MAX_AT_ONCE, Terms, TurnUsage
from woodshed.policy.formats import get_format

from .parts import ADMIN, HERMES, ScriptedEngine

ASKED = Sampling(max_tokens=100, temperature=0.1, top_p=0.5, top_k=7, min_p=0.2, seed=3, logit_bias={4: 1.0})
TURN = TurnUsage(0, 50, 20, 0, 0)


def test_without_terms_a_client_has_its_way() -> None:
    Terms().check([TURN] * 1000, 10)
    assert Terms().apply(ASKED, [TURN], 10**6) == ASKED


@pytest.mark.parametrize(
    ("terms", "most"),
    [
        ({"turn_tokens": 30}, 30), ({"turn_tokens": 300}, 100), ({"sampled_tokens": 90}, 50),
        ({"sampled_tokens": 41}, 1), ({"context_tokens": 70}, 20), ({"context_tokens": 70, "turn_tokens": 5}, 5),
    ],
)  # fmt: skip
def test_a_reply_has_at_most_what_is_left(terms: dict[str, int], most: int) -> None:
    assert Terms(**terms).apply(ASKED, [TURN, TURN], 50).max_tokens == most


def test_a_temperature_means_the_whole_distribution() -> None:
    sampled = Terms(temperature=1.0, seed=9).apply(ASKED, [], 0)
    assert sampled == Sampling(max_tokens=100, temperature=1.0, top_p=1.0, top_k=0, min_p=0.0, seed=9)


def test_what_is_used_up_is_refused() -> None:
    for terms in (Terms(turns=3), Terms(sampled_tokens=40)):
        with pytest.raises(ApiError, match="this key may") as refused:
            terms.check([TURN, TURN], 1)
        assert (refused.value.status, refused.value.code) == (403, "limit_reached")
    with pytest.raises(ContextTooLong):
        Terms(context_tokens=50).apply(ASKED, [], 50)
    with pytest.raises(ApiError) as flood:
        Terms().check([], MAX_AT_ONCE)
    assert flood.value.status == 429


def test_over_http() -> None:
    async def main() -> None:
        engine = ScriptedEngine(lambda _: HERMES.encode("Good.<|im_end|>", allow_special=True))
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
            admin = GatewayAdmin("http://gateway", ADMIN, client=client)
            with pytest.raises(GatewayError, match=r"terms\.turns: Input should be greater"):
                await admin._call("POST", "/admin/trajectories", {"id": "x", "terms": {"turns": -1}})
            with pytest.raises(GatewayError, match=r"terms\.turn: Extra inputs"):
                await admin._call("POST", "/admin/trajectories", {"id": "x", "terms": {"turn": 1}})
            key = await admin.open("t", terms=Terms(turns=2, feedback=False))
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
