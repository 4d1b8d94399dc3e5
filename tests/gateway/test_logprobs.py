"""Log-probabilities and penalties in every API: OpenAI's client, a real server and engine, an independent forward."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from tests.engine.served import KEY, QUICK
from tests.engine.test_penalties import by_definition
from tests.engine.vllm.standin import standing_in
from woodshed.engine.protocol import Sampling
from woodshed.engine.routing.router import Router
from woodshed.engine.vllm.client import VllmEngine
from woodshed.gateway.app import build_app
from woodshed.gateway.client import GatewayAdmin
from woodshed.gateway.journal import Journal
from woodshed.gateway.segments_wire import Finished, decode, encode
from woodshed.gateway.serve import _peer
from woodshed.gateway.settings import GatewaySettings
from woodshed.policy.decoder import causal_attend
from woodshed.policy.formats import get_format
from woodshed.record.segment import Segment
from woodshed.record.store import trajectory_from_bytes, trajectory_to_bytes
from woodshed.record.trajectory import Trajectory
from woodshed.rl.algorithms.mean_baseline import MeanBaseline
from woodshed.rl.batching import build_batch

from .chatty import PLAIN, Chatty, chatty, policy
from .parts import ADMIN, HERMES, ScriptedEngine, rendering, replies
from .site import Site, run

NARROW = {"temperature": 0.7, "extra_body": {"top_k": 5}}
RAW = {"logprobs": True, "extra_body": {"logprobs_mode": "raw", "top_k": 5}, "temperature": 0.7}
INCLUDE: Any = ["message.output_text.logprobs"]


def raw_logits(segment: Segment) -> torch.Tensor:
    """Log-probability of each next token, from one full forward pass."""
    ids = torch.tensor(segment.tokens, dtype=torch.long)
    with torch.no_grad():
        hidden = policy().forward(ids[None], torch.arange(len(ids))[None], causal_attend())
        return policy().logits(hidden)[0]


async def recorded(site: Chatty) -> Segment:
    (segment,) = (await site.admin.finish("t")).segments
    return segment


def check(items: Any, segment: Segment, *, raw: bool, top: int) -> None:
    """Entries of the API against the record and, where they are of the policy, a full forward."""
    places = segment.sampled.nonzero()[0]
    assert len(items) == len(places)
    reference = raw_logits(segment).log_softmax(-1)
    for item, at in zip(items, places):
        token = int(segment.tokens[at])
        assert bytes(item.bytes) == HERMES.token_bytes(token)
        wanted = float(reference[at - 1, token]) if raw else float(segment.logprobs[at])
        assert item.logprob == pytest.approx(wanted, abs=1e-3)
        values = [other.logprob for other in item.top_logprobs]
        assert values == sorted(values, reverse=True) and len(values) == top
        if raw:
            assert values == pytest.approx(reference[at - 1].topk(top).values.tolist(), abs=1e-3)
        else:
            assert sum(map(math.exp, values)) == pytest.approx(1, abs=1e-4), "top_k leaves these"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("raw", [False, True])
def test_chat_completions_tell_what_is_asked_for(stream: bool, raw: bool) -> None:
    async def main() -> None:
        async with chatty() as site:
            extra = {"top_k": 5, **({"logprobs_mode": "raw"} if raw else {})}
            asked: Any = {"temperature": 0.7, "extra_body": extra, "logprobs": True, "top_logprobs": 5}
            if stream:
                chunks = [chunk async for chunk in await site.chat(stream=True, **asked)]
                told = [chunk.choices[0].logprobs for chunk in chunks]
                items = [item for logprobs in told if logprobs for item in logprobs.content]
            else:
                items = (await site.chat(**asked)).choices[0].logprobs.content
            segment = await recorded(site)
            check(items, segment, raw=raw, top=5)
            assert segment.logprobs[segment.sampled].max() > -20

    asyncio.run(main())


def test_what_is_recorded_does_not_depend_on_what_is_told() -> None:
    async def segment_of(**fields: Any) -> Segment:
        async with chatty() as site:
            await site.chat(**{**NARROW, **fields})
            return await recorded(site)

    plain = asyncio.run(segment_of())
    for fields in (RAW, {**RAW, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 3}):
        other = asyncio.run(segment_of(**fields))
        assert np.array_equal(plain.tokens, other.tokens) and np.array_equal(plain.logprobs, other.logprobs)


def test_the_servers_default_is_for_requests_that_do_not_say() -> None:
    async def main() -> None:
        async with chatty(logprobs="raw") as site:
            greedy: Any = {"temperature": 0.0, "logprobs": True}
            items = (await site.chat(**greedy)).choices[0].logprobs.content
            assert all(item.logprob < 0 for item in items), "of the policy"
            other: Any = {"messages": [{"role": "user", "content": "y"}], "extra_body": {"logprobs_mode": "sampled"}}
            said = await site.chat(**greedy, **other)
            assert all(item.logprob == 0 for item in said.choices[0].logprobs.content)
            none = await site.chat(messages=[{"role": "user", "content": "z"}])
            assert none.choices[0].logprobs is None

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [{"include": INCLUDE}, {"include": INCLUDE, "top_logprobs": 4}, {"top_logprobs": 4}])
def test_responses_tell_those_of_the_text(stream: bool, asked: dict[str, Any]) -> None:
    async def main() -> None:
        async with chatty() as site:
            extra = {"logit_bias": PLAIN, "seed": 3, "logprobs_mode": "raw"}
            given: Any = {"model": "m", "input": "fix it", "max_output_tokens": 12, "extra_body": extra, **asked}
            if stream:
                events = [event async for event in await site.client.responses.create(**given, stream=True)]
                (done,) = [event for event in events if event.type == "response.output_text.done"]
                response = events[-1].response
                assert [item.logprob for item in done.logprobs] == [
                    item.logprob for item in response.output[0].content[0].logprobs
                ]
            else:
                response = await site.client.responses.create(**given)
            (part,) = response.output[0].content
            segment = await recorded(site)
            check(part.logprobs, segment, raw=True, top=asked.get("top_logprobs", 0))
            assert b"".join(bytes(item.bytes) for item in part.logprobs).decode("utf-8", "replace").strip() == part.text

    asyncio.run(main())


def test_responses_leave_out_tokens_of_thinking_and_calls() -> None:
    text = "<think>\nhello there\n</think>\n\nhello there, friend"
    call = '\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
    tool = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}

    async def test(site: Site) -> None:
        body = {"input": "x", "include": INCLUDE, "tools": [tool], "max_output_tokens": 500}
        output = (await site.post("/v1/responses", body)).json()["output"]
        assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
        entries = output[1]["content"][0]["logprobs"]
        assert "".join(item["token"] for item in entries).strip() == "hello there, friend"

    run(ScriptedEngine(replies(text + call, tokenizer=HERMES)), test, format="hermes")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/messages", {"logprobs": True}, "logprobs"),
        ("/v1/messages", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/messages", {"logprobs_mode": "raw"}, "logprobs_mode"),
        ("/v1/responses", {"logprobs": True}, "logprobs"),
        ("/v1/responses", {"logprobs_mode": "raw"}, "logprobs_mode"),
        ("/v1/responses", {"top_logprobs": 21}, "top_logprobs"),
        ("/v1/responses", {"include": "all"}, "include"),
    ],
)
def test_what_an_api_has_not_is_refused_by_name(path: str, fields: dict[str, Any], param: str) -> None:
    async def test(site: Site) -> None:
        body = {"messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 5}
        refused = await site.post(path, {**body, **fields})
        assert refused.status_code == 400 and param in refused.json()["error"]["message"]
        assert not site.engine.calls

    run(ScriptedEngine(replies()), test, format="hermes")


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_penalties_of_a_live_trajectory_are_sampled_and_recorded(api: str) -> None:
    penalties = {"presence_penalty": 0.8, "frequency_penalty": 0.5}
    ask = Sampling(presence_penalty=0.8, frequency_penalty=0.5, repetition_penalty=1.2)

    async def main() -> Segment:
        async with chatty() as site:
            extra = {"repetition_penalty": 1.2}
            if api == "chat":
                await site.chat(**penalties, extra_body=extra, max_tokens=40, logit_bias={})
            else:
                body: Any = {**extra, **penalties, "seed": 7}
                await site.client.responses.create(model="m", input="fix it", max_output_tokens=40, extra_body=body)
            return await recorded(site)

    segment = asyncio.run(main())
    logits, (start, *_) = raw_logits(segment), segment.sampled.nonzero()[0]
    tokens = segment.tokens.tolist()
    for at in segment.sampled.nonzero()[0]:
        row = by_definition(logits[at - 1].double().tolist(), ask, tokens[:start], tokens[start:at])
        wanted = float(torch.tensor(row, dtype=torch.float64).log_softmax(-1)[tokens[at]])
        assert segment.logprobs[at] == pytest.approx(wanted, abs=1e-3)
    (mark,) = segment.altered
    assert (mark.start, mark.end) == (start, len(tokens))
    assert (mark.presence, mark.frequency, mark.repetition) == (0.8, 0.5, 1.2)


def segment_sampled_with(**fields: Any) -> Segment:
    async def main() -> Segment:
        async with chatty() as site:
            await site.chat(**fields)
            return await recorded(site)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"presence_penalty": 1.0}, "with penalties"),
        ({"temperature": 0.5}, "at temperature 0.5"),
        ({"temperature": 0}, "at temperature 0"),
        ({"logit_bias": {"7": 1.0}}, "with logit_bias"),
    ],
)
def test_no_trainer_learns_from_another_distribution_than_the_policys(fields: dict[str, Any], words: str) -> None:
    segment = segment_sampled_with(**fields)
    group = [
        Trajectory(str(i), "task", "g", "live", "", "", "submitted", segments=[segment], rewards={"outcome": float(i)})
        for i in range(2)
    ]
    again = [trajectory_from_bytes(trajectory_to_bytes(one)) for one in group]
    assert again[0].segments[0].altered == segment.altered
    travelled = decode(encode(Finished("x", [segment])))
    assert travelled.segments[0].altered == segment.altered
    with pytest.raises(ValueError, match=f"sampled {words}"):
        build_batch([again], MeanBaseline(10), step=0, batch_id="b", generation_budget=10)
    for trajectory in again:
        trajectory.segments[0].altered.clear()
    build_batch([again], MeanBaseline(10), step=0, batch_id="b", generation_budget=10)


def test_a_restart_keeps_what_was_sampled_with_penalties_and_forgets_reports(tmp_path: Path) -> None:
    engine = ScriptedEngine(replies(*["ok<|im_end|>"] * 3, tokenizer=HERMES))
    body = {"messages": [{"role": "user", "content": "x"}], "repetition_penalty": 1.5}

    async def life(key: str) -> str:
        kept = Journal(tmp_path)
        app = build_app(engine, get_format("hermes"), HERMES, admin_key=ADMIN, journal=kept)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            key = key or await GatewayAdmin("http://gateway", ADMIN, client=http).open("t", source="live")
            headers = {"authorization": f"Bearer {key}"}
            assert (await http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
            raw = {**body, "logprobs": True, "logprobs_mode": "raw"}
            assert (await http.post("/v1/chat/completions", json=raw, headers=headers)).status_code == 200
        kept.close()
        return key

    key = asyncio.run(life(""))
    asyncio.run(life(key))
    assert len(engine.calls) == 3, "the first is given again; the log-probabilities of the second are gone"
    last = Journal(tmp_path)
    (restored,) = last.restore(rendering("hermes"))
    last.close()
    assert [[mark.repetition for mark in s.altered] for s in restored.recorder.freeze()] == [[1.5]] * 3


def test_vllm_behind_the_gateway_tells_alternatives_and_refuses_raw_ones_by_name() -> None:
    async def main() -> None:
        async with standing_in(policy()) as standin:
            router = Router([VllmEngine(standin.url, KEY, vocabulary=HERMES.vocab_size)], QUICK)
            await router.ready()
            app = build_app(router, get_format("hermes"), HERMES, admin_key=ADMIN)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
                key = await GatewayAdmin("http://gateway", ADMIN, client=http).open("t")
                headers = {"authorization": f"Bearer {key}"}
                body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "max_tokens": 5}

                async def ask(**fields: Any) -> httpx.Response:
                    return await http.post("/v1/chat/completions", json={**body, **fields}, headers=headers)

                told = (await ask(top_logprobs=3, temperature=0.5)).json()["choices"][0]["logprobs"]["content"]
                assert [len(item["top_logprobs"]) for item in told] == [3] * len(told) and told
                refused = await ask(logprobs_mode="raw", temperature=0.5)
                assert refused.status_code == 400 and refused.json()["error"]["param"] == "logprobs_mode"
                assert (await ask(logprobs_mode="raw")).status_code == 200, "the policy itself is sampled from"
            await router.close()

    asyncio.run(main())
    with pytest.raises(ValueError, match="logprobs is 'raw'"):
        _peer("vllm+http://127.0.0.1:9", "key", GatewaySettings(logprobs="raw"), 0, 97)
