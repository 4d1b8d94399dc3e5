"""Forced calls and JSON schemas through a real server and the vendors' clients, with a policy of random weights: what
it says is right because nothing else is allowed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import anthropic
import httpx
import jsonschema
import numpy as np
import openai
import pytest
import torch
from pydantic import BaseModel, ConfigDict

from woodshed.engine.grammar import Grammars
from woodshed.gateway.client import GatewayAdmin
from woodshed.policy.config import DecoderConfig
from woodshed.policy.decoder import Decoder, causal_attend
from woodshed.policy.formats import get_format
from woodshed.policy.hf import Policy, save_policy
from woodshed.record.segment import Segment
from woodshed.rl.batching import allowed_sets

from .parts import ADMIN, COMPACT, HERMES, TOOLS, ScriptedEngine, replies
from .real import server
from .site import Site as Scripted
from .site import run as run_scripted


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    verdict: Literal["good", "bad"]
    sure: bool
    note: Literal["", "see above"] | None


SCHEMA = Verdict.model_json_schema()
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bern", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "tags": {"type": "array", "items": {"enum": ["wind", "sun"]}, "maxItems": 2},
    },
    "required": ["city", "days"],
}
ALARM = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
ABOUT = {"weather": WEATHER, "alarm": ALARM}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in ABOUT.items()]
RESPONSES_TOOLS: Any = [{"type": "function", "name": n, "parameters": s, "strict": False} for n, s in ABOUT.items()]
MESSAGES_TOOLS: Any = [{"name": n, "input_schema": s} for n, s in ABOUT.items()]
USER: Any = [{"role": "user", "content": "fix it"}]
NO_THINKING = {"logit_bias": {HERMES.special_ids["<think>"]: -100}}
"""Random weights would begin every second reply with a thought that has no end."""


class Real(NamedTuple):
    url: str
    decoder: Decoder
    directory: Path


def save(directory: Path) -> Decoder:
    config = DecoderConfig(
        vocab_size=HERMES.vocab_size,
        d_model=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        d_ff=64,
        max_positions=4096,
    )
    decoder = Decoder(config, seed=0)
    save_policy(Policy(decoder, HERMES, get_format("hermes"), config), directory / "policy")
    return decoder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    directory = tmp_path_factory.mktemp("constraints")
    decoder = save(directory)
    with server(directory, "--max-tokens", "600") as (url, _):
        yield Real(url, decoder, directory)


async def opened(real: Real, name: str) -> str:
    async with GatewayAdmin(real.url, ADMIN) as admin:
        return await admin.open(name)


async def recorded(real: Real, name: str) -> list[Segment]:
    """The segments, whose log-probabilities are those of a full forward among what the grammars allow."""
    async with GatewayAdmin(real.url, ADMIN) as admin:
        segments = (await admin.finish(name)).segments
    for segment in segments:
        assert len(segment.constraints) >= 1
        allowed, of_T = allowed_sets(segment, Grammars.of(HERMES))
        tokens = torch.from_numpy(segment.tokens.astype(np.int64))
        with torch.no_grad():
            hidden = real.decoder.forward(tokens[None], torch.arange(len(tokens))[None], causal_attend())
            logits = real.decoder.logits(hidden)[0]
        for at in np.flatnonzero(segment.sampled & (of_T >= 0)):
            forbidden = torch.ones(logits.shape[1], dtype=torch.bool)
            forbidden[allowed.of(of_T[at])] = False
            row = logits[at - 1].masked_fill(forbidden, -torch.inf)
            row[HERMES.special_ids["<think>"]] -= 100  # the bias of the request
            assert abs(float(row.log_softmax(-1)[tokens[at]]) - segment.logprobs[at]) < 1e-4
    return segments


def check_call(name: str, arguments: Any) -> None:
    jsonschema.validate(arguments, {**ABOUT[name], "additionalProperties": False})


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions_are_forced(real: Real, stream: bool) -> None:
    async def main() -> None:
        key = await opened(real, f"chat{stream}")
        async with openai.AsyncOpenAI(base_url=real.url + "/v1", api_key=key, max_retries=0) as client:

            async def ask(seed: int, **fields: Any) -> Any:
                given: Any = {"model": "m", "messages": USER, "tools": CHAT_TOOLS, "seed": seed, **fields}
                given["extra_body"] = NO_THINKING
                if not stream:
                    return (await client.chat.completions.create(**given)).choices[0]
                async with client.chat.completions.stream(**given) as events:
                    async for _ in events:
                        pass
                    return events.current_completion_snapshot.choices[0]

            names, most = set(), 0
            for seed in range(6):
                choice = await ask(seed, tool_choice="required")
                assert choice.finish_reason == "tool_calls" and not choice.message.content
                for call in choice.message.tool_calls:
                    check_call(call.function.name, json.loads(call.function.arguments))
                    names.add(call.function.name)
                most = max(most, len(choice.message.tool_calls))
            assert names == set(ABOUT) and most > 1
            for seed in range(4):
                one = await ask(seed, tool_choice="required", parallel_tool_calls=False)
                assert len(one.message.tool_calls) == 1
            named = {"type": "function", "function": {"name": "alarm"}}
            choice = await ask(1, tool_choice=named)
            assert {call.function.name for call in choice.message.tool_calls} == {"alarm"}
            allowed: Any = {"mode": "required", "tools": [named]}
            choice = await ask(2, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
            assert {call.function.name for call in choice.message.tool_calls} == {"alarm"}
            format = {"type": "json_schema", "json_schema": {"name": "verdict", "schema": SCHEMA, "strict": True}}
            choice = await ask(3, response_format=format, tool_choice="none")
            Verdict.model_validate_json(choice.message.content)
            kinds = set()
            for seed in range(8):
                choice = await ask(seed, response_format=format)
                kinds.add(bool(choice.message.tool_calls))
                if not choice.message.tool_calls:
                    Verdict.model_validate_json(choice.message.content)
            assert kinds == {True, False}
            cut = await ask(1, tool_choice=named, max_tokens=4)
            assert cut.finish_reason == "length"
            if not stream:
                parsed = await client.chat.completions.parse(
                    model="m", messages=USER, response_format=Verdict, extra_body=NO_THINKING
                )
                assert isinstance(parsed.choices[0].message.parsed, Verdict)
        segments = await recorded(real, f"chat{stream}")
        assert sum(len(s.constraints) for s in segments) >= 20

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_responses_are_forced(real: Real, stream: bool) -> None:
    async def main() -> None:
        key = await opened(real, f"responses{stream}")
        async with openai.AsyncOpenAI(base_url=real.url + "/v1", api_key=key, max_retries=0) as client:

            async def ask(seed: int, **fields: Any) -> Any:
                body = {**NO_THINKING, "seed": seed}
                given: Any = {"model": "m", "input": "fix it", "tools": RESPONSES_TOOLS, "extra_body": body, **fields}
                if not stream:
                    return await client.responses.create(**given)
                async with client.responses.stream(**given) as events:
                    return await events.get_final_response()

            names = set()
            for seed in range(5):
                done = await ask(seed, tool_choice="required", parallel_tool_calls=False)
                (call,) = done.output
                check_call(call.name, json.loads(call.arguments))
                names.add(call.name)
                assert done.tool_choice == "required" and done.parallel_tool_calls is False
            assert names == set(ABOUT)
            done = await ask(1, tool_choice={"type": "function", "name": "weather"})
            assert {call.name for call in done.output} == {"weather"}
            format = {"type": "json_schema", "name": "verdict", "schema": SCHEMA}
            done = await ask(2, text={"format": format}, tool_choice="none")
            Verdict.model_validate_json(done.output_text)
            assert done.text.format.type == "json_schema"
            if not stream:  # their stream refuses a reply that was cut, and free text of random weights has no end
                strict = [{**tool, "strict": True} for tool in RESPONSES_TOOLS]
                assert (await ask(3, tools=strict, max_output_tokens=20)).status in ("completed", "incomplete")
        segments = await recorded(real, f"responses{stream}")
        assert sum(len(s.constraints) for s in segments) == (7 if stream else 8)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_messages_are_forced(real: Real, stream: bool) -> None:
    async def main() -> None:
        key = await opened(real, f"messages{stream}")
        async with anthropic.AsyncAnthropic(base_url=real.url, api_key=key, max_retries=0) as client:

            async def ask(seed: int, **fields: Any) -> Any:
                body = {**NO_THINKING, "seed": seed, **fields.pop("extra_body", {})}
                given: Any = {"model": "m", "max_tokens": 600, "messages": USER, "tools": MESSAGES_TOOLS, **fields}
                if not stream:
                    return await client.messages.create(**given, extra_body=body)
                async with client.messages.stream(**given, extra_body=body) as events:
                    return await events.get_final_message()

            names = set()
            for seed in range(5):
                done = await ask(seed, tool_choice={"type": "any", "disable_parallel_tool_use": True})
                (block,) = done.content
                check_call(block.name, block.input)
                names.add(block.name)
                assert done.stop_reason == "tool_use"
            assert names == set(ABOUT)
            done = await ask(1, tool_choice={"type": "tool", "name": "alarm"})
            assert {block.name for block in done.content} == {"alarm"}
            format = {"format": {"type": "json_schema", "schema": SCHEMA}}
            done = await ask(2, tool_choice={"type": "none"}, extra_body={"output_config": format})
            Verdict.model_validate_json(done.content[0].text)
        segments = await recorded(real, f"messages{stream}")
        assert sum(len(s.constraints) for s in segments) == 7

    asyncio.run(main())


def test_the_three_dialects_have_one_grammar_and_the_same_tokens(real: Real) -> None:
    async def main() -> None:
        shared = {**NO_THINKING, "seed": 5, "model": "m", "max_tokens": 300}
        chat = [{**tool, "function": {**tool["function"], "strict": True}} for tool in CHAT_TOOLS]
        asks = {
            "/v1/chat/completions": {**shared, "messages": USER, "tools": chat, "tool_choice": "required"},
            "/v1/responses": {
                **shared,
                "max_output_tokens": 300,
                "input": "fix it",
                "tools": RESPONSES_TOOLS,
                "tool_choice": "required",
            },
            "/v1/messages": {**shared, "messages": USER, "tools": MESSAGES_TOOLS, "tool_choice": {"type": "any"}},
        }
        seen = []
        async with httpx.AsyncClient(base_url=real.url) as http:
            for i, (path, body) in enumerate(asks.items()):
                key = await opened(real, f"same{i}")
                (await http.post(path, json=body, headers={"authorization": f"Bearer {key}"})).raise_for_status()
                (segment,) = await recorded(real, f"same{i}")
                seen.append((segment.tokens.tolist(), segment.constraints))
        assert seen[0] == seen[1] == seen[2]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "fields", "param", "keyword"),
    [
        (
            "/v1/chat/completions",
            {
                "messages": USER,
                "tool_choice": "required",
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "x",
                            "parameters": {
                                "type": "object",
                                "properties": {"a": {"type": "array", "uniqueItems": True}},
                            },
                        },
                    }
                ],
            },
            "tools",
            "uniqueItems",
        ),
        (
            "/v1/chat/completions",
            {
                "messages": USER,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"not": {"type": "string"}}},
                },
            },
            "response_format.json_schema.schema",
            "not",
        ),
        (
            "/v1/chat/completions",
            {"messages": USER, "tools": CHAT_TOOLS, "tool_choice": {"type": "function", "function": {"name": "rain"}}},
            "tool_choice",
            "rain",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {
                        "type": "json_schema",
                        "schema": {"type": "object", "properties": {"a": {"$ref": "http://example.com/a"}}},
                    }
                },
            },
            "text.format.schema",
            "http",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {
                        "type": "json_schema",
                        "schema": {"type": "object", "properties": {f"p{i}": {} for i in range(4000)}},
                    }
                },
            },
            "text.format.schema",
            "properties",
        ),
        (
            "/v1/responses",
            {
                "input": "x",
                "text": {
                    "format": {"type": "json_schema", "schema": {"type": "array", "items": {"multipleOf": 999983}}}
                },
            },
            "text.format.schema",
            "multipleOf",
        ),
        ("/v1/responses", {"input": "x", "tool_choice": "required"}, "tool_choice", "no tools"),
        (
            "/v1/messages",
            {
                "messages": USER,
                "max_tokens": 9,
                "output_config": {
                    "format": {"type": "json_schema", "schema": {"type": "object", "dependentRequired": {"a": ["b"]}}}
                },
            },
            "output_config.format.schema",
            "dependentRequired",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused_by_name(
    real: Real, path: str, fields: dict[str, Any], param: str, keyword: str
) -> None:
    async def main() -> None:
        key = await opened(real, "refused")
        async with httpx.AsyncClient(base_url=real.url) as http:
            answer = await http.post(path, json={"model": "m", **fields}, headers={"authorization": f"Bearer {key}"})
        message = answer.json()["error"]["message"]
        assert answer.status_code == 400 and message.startswith(f"{param}: ") and keyword in message
        async with GatewayAdmin(real.url, ADMIN) as admin:
            assert not (await admin.finish("refused")).segments

    asyncio.run(main())


def test_a_crash_keeps_constraints_and_gives_a_reply_again_only_under_its_grammar(tmp_path: Path) -> None:
    save(tmp_path)
    ask: Any = {"model": "m", "messages": USER, "tools": CHAT_TOOLS, "max_tokens": 300, **NO_THINKING, "seed": 3}
    forced = {**ask, "tool_choice": "required"}

    async def post(url: str, key: str, body: Any) -> Any:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            answer = await http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        return answer.raise_for_status().json()["choices"][0]["message"]

    async def first(url: str) -> tuple[str, Any, str, Any]:
        async with GatewayAdmin(url, ADMIN) as admin:
            same, other = await admin.open("same"), await admin.open("other")
        return same, await post(url, same, forced), other, await post(url, other, forced)

    with server(tmp_path, "--journal", str(tmp_path / "journal")) as (url, _):
        same, reply, other, lost = asyncio.run(first(url))  # and it is killed

    async def then(url: str) -> None:
        assert await post(url, same, forced) == reply
        again = await post(url, other, {**ask, "max_tokens": 3})
        assert again != lost
        async with GatewayAdmin(url, ADMIN) as admin:
            (segment,) = (await admin.finish("same")).segments
            two = (await admin.finish("other")).segments
        (constraint,) = segment.constraints
        assert segment.sampled[constraint.start : constraint.end].all() and constraint.end == len(segment)
        assert allowed_sets(segment, Grammars.of(HERMES))[1][constraint.start] >= 0
        assert [len(s.constraints) for s in two] == [1, 0]

    with server(tmp_path, "--journal", str(tmp_path / "journal")) as (url, _):
        asyncio.run(then(url))


def test_without_the_library_demands_are_refused_and_wishes_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Willing(ScriptedEngine):
        def grammars_refused(self) -> str | None:
            return None

    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]

    async def test(site: Scripted) -> None:
        for fields in ({"tool_choice": "required"}, {"response_format": {"type": "json_object"}}):
            answer = await site.chat(tools=TOOLS, **fields)
            assert answer.status_code == 400 and "woodshed[grammar]" in answer.json()["error"]["message"]
        for fields in ({"tools": strict}, {"tools": TOOLS, "parallel_tool_calls": False}):
            assert (await site.chat(**fields)).status_code == 200
        assert [s.grammar for s in site.engine.samplings] == [None, None]

    monkeypatch.setitem(sys.modules, "llguidance", None)
    run_scripted(Willing(replies("submit<end>", "test<end>")), test)


def test_an_engine_gets_the_grammar_that_is_recorded() -> None:
    class Willing(ScriptedEngine):
        def grammars_refused(self) -> str | None:
            return None

    async def test(site: Scripted) -> None:
        assert (await site.chat(tools=TOOLS, tool_choice="required")).status_code == 200
        (sampling,) = site.engine.samplings
        assert sampling.grammar is not None and sampling.stop_ids == (COMPACT.special_ids["<end>"],)
        (segment,) = (await site.admin.finish("t")).segments
        assert [c.grammar for c in segment.constraints] == [sampling.grammar]

    run_scripted(Willing(replies("submit<end>")), test)
