"""Several choices of one request: OpenAI's client, a real server, a real engine."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import httpx
import openai
import pytest

from woodshed.engine.protocol import Completion, EngineError
from woodshed.gateway.key_limits import KeyLimits

from .chatty import PLAIN, Chatty, chatty, policy
from .parts import HERMES, ScriptedEngine, replies
from .real import logprob_gap
from .site import Site, run

LONG = {"max_tokens": 1500, "logit_bias": PLAIN}


def test_choices_have_their_index_and_usage_counts_the_prompt_once() -> None:
    async def main() -> None:
        async with chatty() as site:
            one = await site.chat()
            reply = await site.chat(n=5, logit_bias={}, max_tokens=9)
            assert [choice.index for choice in reply.choices] == [0, 1, 2, 3, 4]
            assert len({choice.message.model_dump_json() for choice in reply.choices}) > 1
            assert reply.usage.prompt_tokens == one.usage.prompt_tokens
            finished = await site.admin.finish("t")
            sampled = [turn["sampled_tokens"] for turn in finished.usage[1:]]
            assert len(sampled) == 5 and reply.usage.completion_tokens == sum(sampled)
            assert reply.usage.total_tokens == reply.usage.prompt_tokens + sum(sampled)

    asyncio.run(main())


def test_streamed_choices_are_those_that_are_not_streamed() -> None:
    async def main() -> None:
        async with chatty() as site, chatty() as other:
            whole = await site.chat(n=4)
            chunks = [c async for c in await other.chat(n=4, stream=True, stream_options={"include_usage": True})]
            texts: dict[int, str] = defaultdict(str)
            ends: dict[int, str] = {}
            for chunk in chunks[:-1]:
                (choice,) = chunk.choices
                assert choice.index not in ends, "nothing follows the end of a choice"
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    ends[choice.index] = choice.finish_reason
            assert len({chunk.id for chunk in chunks}) == 1
            assert texts == {c.index: c.message.content for c in whole.choices}
            assert ends == {c.index: c.finish_reason for c in whole.choices}
            assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
            assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens

    asyncio.run(main())


def test_each_choice_has_numbers_of_its_own_from_one_seed() -> None:
    async def main() -> None:
        async with chatty() as site:
            texts = [choice.message.content for choice in (await site.chat(n=3, seed=40)).choices]
            alone = [(await site.chat(seed=40 + i)).choices[0].message.content for i in range(3)]
            assert texts == alone and len(set(texts)) == 3

    asyncio.run(main())


def test_choices_are_recorded_as_branches_and_the_client_goes_on_from_one() -> None:
    async def main() -> None:
        async with chatty(source="train") as site:
            messages: list[Any] = [{"role": "user", "content": "fix it"}]
            first = await site.chat(messages=messages, n=3, logit_bias={})
            messages += [first.choices[1].message.model_dump(exclude_none=True), {"role": "user", "content": "go on"}]
            await site.chat(messages=messages, logit_bias={})
            segments = (await site.admin.finish("t")).segments
            assert len(segments) == 3, "three choices, and one of them goes on"
            assert sorted(int(segment.sampled.sum()) > 12 for segment in segments) == [False, False, True]
            starts = {tuple(segment.tokens[: segment.sampled.argmax()].tolist()) for segment in segments}
            assert len(starts) == 1, "the prompt is the same"
            assert all(logprob_gap(policy(), segment) < 1e-3 for segment in segments)
            assert site.engine.stats()["reused_tokens"] > 0, "the prompt was computed once"

    asyncio.run(main())


async def _started(site: Chatty, count: int) -> None:
    """So many choices run, and each has sampled something."""
    while site.engine.stats()["running"] < count or site.engine.stats()["generated_tokens"] < 4 * count:
        await asyncio.sleep(0.002)


async def _idle(site: Chatty) -> None:
    while site.engine.stats()["running"] or site.engine.stats()["waiting"]:
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_stops_all_choices(stream: bool) -> None:
    async def main() -> None:
        async with chatty(engine={"native": "off"}, limits={"turns": 9}) as site:
            async with httpx.AsyncClient(base_url=site.url) as http:
                body = {"messages": [{"role": "user", "content": "x"}], "n": 6, "stream": stream, **LONG}
                headers = {"authorization": f"Bearer {site.key}"}
                call = asyncio.create_task(http.post("/v1/chat/completions", json=body, headers=headers))
                await _started(site, 6)
                call.cancel()
            await asyncio.wait_for(_idle(site), 20)
            while site.gateway.trajectories.by_id["t"].running:
                await asyncio.sleep(0.002)
            assert not site.gateway.trajectories.by_id["t"].usage, "nothing is recorded"
            assert site.gateway.trajectories.by_id["t"].key_usage().turns == 6, "but it counts"
            assert not (await site.admin.finish("t")).segments

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_one_choice_ends_them_all(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with chatty(engine={"native": "off"}) as site:
            real, calls = site.engine.generate, 0

            async def generate(*given: Any, **named: Any) -> Completion:
                nonlocal calls
                calls += 1
                if calls == 3:
                    await _started(site, 3)
                    raise EngineError("the third one fails")
                return await real(*given, **named)

            monkeypatch.setattr(site.engine, "generate", generate)
            with pytest.raises(openai.APIError, match="the third one fails"):
                reply = await site.chat(n=4, stream=stream, **LONG)
                if stream:
                    async for _ in reply:
                        pass
            await asyncio.wait_for(_idle(site), 20)
            assert calls == 4 and not (await site.admin.finish("t")).segments

    asyncio.run(main())


def test_too_many_choices_are_refused_before_anything_is_sampled() -> None:
    async def main() -> None:
        async with chatty(limits={"turns": 3}) as site:
            with pytest.raises(openai.BadRequestError, match="at most 64"):
                await site.chat(n=65)
            with pytest.raises(openai.PermissionDeniedError, match="3 turns"):
                await site.chat(n=4)
            assert site.engine.stats()["iterations"] == 0
            assert len((await site.chat(n=3)).choices) == 3
        async with chatty(engine={"max_running": 1, "max_waiting": 2}) as site:
            with pytest.raises(openai.RateLimitError, match="max_waiting"):
                await site.chat(n=20)
            await asyncio.wait_for(_idle(site), 20)
            assert not (await site.admin.finish("t")).segments

    asyncio.run(main())


def test_choices_share_the_tokens_that_a_key_has_left() -> None:
    async def main() -> None:
        async with chatty(limits={"sampled_tokens": 30}) as site:
            reply = await site.chat(n=3, max_tokens=1000)
            assert reply.usage.completion_tokens <= 30
            assert [choice.finish_reason for choice in reply.choices] == ["length"] * 3

    asyncio.run(main())


def test_choices_that_were_lost_are_given_again() -> None:
    engine = ScriptedEngine(replies(*(f"choice {i}<|im_end|>" for i in range(5)), tokenizer=HERMES))

    async def test(site: Site) -> None:
        first = (await site.chat(n=3)).json()
        for segment in site.app.state.gateway.trajectories.by_id["t"].recorder.segments:
            segment.undelivered = True
        again = (await site.chat(n=3)).json()
        assert again["choices"] == first["choices"] and len(engine.calls) == 3
        assert (await site.chat(n=2)).json()["choices"][0]["message"]["content"] == "choice 3", "another request"

    run(engine, test, format="hermes")


def test_choices_that_an_error_of_another_ends_do_not_count_as_cancelled() -> None:
    said: list[list[int]] = []

    def fails(prompt: list[int]) -> list[int]:
        said.append(prompt)
        if len(said) == 2:
            raise EngineError("out of memory")
        return HERMES.encode("a<|im_end|>", allow_special=True)

    async def test(site: Site) -> None:
        assert (await site.chat(n=3)).status_code == 500
        metrics = site.app.state.gateway.metrics
        assert metrics.cancelled == 0 and metrics.turns == 0

    run(ScriptedEngine(fails), test, format="hermes")


def test_lost_choices_are_given_again_although_fewer_tokens_are_left() -> None:
    engine = ScriptedEngine(replies(*(f"choice {i}<|im_end|>" for i in range(6)), tokenizer=HERMES))

    async def test(site: Site) -> None:
        key = await site.admin.open("limited", limits=KeyLimits(sampled_tokens=100))
        first = (await site.chat(key=key, n=3)).json()
        for segment in site.app.state.gateway.trajectories.by_id["limited"].recorder.segments:
            segment.undelivered = True
        again = (await site.chat(key=key, n=3)).json()
        assert again["choices"] == first["choices"] and len(engine.calls) == 3
        assert {sampling.max_tokens for sampling in engine.samplings} == {33}

    run(engine, test, format="hermes")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_other_apis_have_one_choice(path: str) -> None:
    async def test(site: Site) -> None:
        body = {"messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 5}
        refused = await site.post(path, {**body, "n": 2})
        assert refused.status_code == 400 and "n: " in refused.json()["error"]["message"]
        assert (await site.post(path, {**body, "n": 1})).status_code == 200

    run(ScriptedEngine(replies("ok<|im_end|>", tokenizer=HERMES)), test, format="hermes")
