"""What agents of others send and expect by default: signatures, tools of vendors, functions, ignored fields."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx2  # what this version of the anthropic SDK speaks with
import openai
import pytest

from woodshed.engine.protocol import Sampling
from woodshed.gateway.key_limits import KeyLimits

from .parts import HERMES, ScriptedEngine, replies
from .site import USER, Site, run

THOUGHT = "<think>\nLook first.\n</think>\n\nI read it.<|im_end|>"
CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
SPAWN = '<tool_call>\n{"name": "team__spawn", "arguments": {"path": "a"}}\n</tool_call><|im_end|>'
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
FUNCTION = {"name": "read_file", "description": "reads", "parameters": SCHEMA}


def scripted(*texts: str) -> ScriptedEngine:
    return ScriptedEngine(replies(*texts, tokenizer=HERMES))


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_is_signed_and_comes_back_in_one_segment(streamed: bool) -> None:
    signatures: list[str] = []

    async def test(site: Site) -> None:
        transport = httpx2.AsyncClient(transport=httpx2.ASGITransport(site.app))
        client = anthropic.AsyncAnthropic(api_key=site.key, base_url="http://gateway", http_client=transport)
        messages: list[Any] = [{"role": "user", "content": "fix it"}]
        for _ in range(3):
            asked: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": messages}
            if streamed:
                async with client.messages.stream(**asked) as stream:
                    reply = await stream.get_final_message()
            else:
                reply = await client.messages.create(**asked)
            signatures.extend(block.signature for block in reply.content if block.type == "thinking")
            # As agent frameworks do: thinking without a signature is dropped or becomes text.
            content = [b.to_dict() for b in reply.content if b.type != "thinking" or b.signature]
            assert [block["type"] for block in content] == ["thinking", "text"]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "go on"}]
        await transport.aclose()
        assert len((await site.admin.finish("t")).segments) == 1

    run(scripted(*[THOUGHT] * 3), test, format="hermes")
    assert len(set(signatures)) == 1 and len(signatures) == 3 and len(signatures[0]) >= 32


def test_strict_is_shown_in_no_dialect() -> None:
    engine = scripted(*["ok<|im_end|>"] * 4)

    async def test(site: Site) -> None:
        for strict in ({}, {"strict": True}):
            tools = [{"type": "function", "function": {**FUNCTION, **strict}}]
            assert (await site.chat(tools=tools)).status_code == 200
            body = {"input": "fix it", "tools": [{"type": "function", **FUNCTION, **strict}]}
            assert (await site.post("/v1/responses", body)).status_code == 200

    run(engine, test, format="hermes")
    prompts = [prompt for _, prompt, _ in engine.calls]
    assert len(prompts) == 4 and all(prompt == prompts[0] for prompt in prompts)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(
    "name,value", [("presence_penalty", 0.5), ("frequency_penalty", -1), ("repetition_penalty", 1.1)]
)
def test_penalties_reach_the_engine_and_are_refused_for_training(path: str, name: str, value: float) -> None:
    async def test(site: Site) -> None:
        body = {"messages": USER, "input": "fix it", "max_tokens": 50}
        refused = await site.post(path, {**body, name: value})
        error = refused.json()["error"]
        assert refused.status_code == 400 and "training" in error["message"]
        assert error.get("param", name) == name and not site.engine.calls
        site.key = await site.admin.open("fixed", limits=KeyLimits(temperature=1.0))
        assert (await site.post(path, {**body, name: value})).status_code == 200
        assert not site.engine.samplings[-1].penalised, "the key's limits fix how it is sampled"
        site.key = await site.admin.open("live", source="live")
        assert (await site.post(path, {**body, name: value})).status_code == 200
        assert getattr(site.engine.samplings[-1], name) == value
        (segment,) = (await site.admin.finish("live")).segments
        assert [getattr(segment.altered[0], name.removesuffix("_penalty"))] == [value]
        site.key = await site.admin.open("defaults")
        defaults = {"presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0}
        assert (await site.post(path, {**body, **defaults})).status_code == 200

    run(scripted(*["ok<|im_end|>"] * 3), test, format="hermes")


@pytest.mark.parametrize("name,value", [("top_p", 0.5), ("top_k", 3), ("min_p", 0.1)])
def test_truncation_without_kept_sets_is_refused_for_training_and_marked_elsewhere(name: str, value: float) -> None:
    async def test(site: Site) -> None:
        refused = await site.chat(**{name: value})
        error = refused.json()["error"]
        assert refused.status_code == 400 and error["param"] == name and "renormalise" in error["message"]
        assert not site.engine.calls
        assert (await site.chat(temperature=0, **{name: value})).status_code == 200, "greedy decoding truncates nothing"
        site.key = await site.admin.open("live", source="live")
        assert (await site.chat(**{name: value})).status_code == 200
        (segment,) = (await site.admin.finish("live")).segments
        assert [(k.known, k.end) for k in segment.kept] == [(False, len(segment))]

    engine = scripted(*["ok<|im_end|>"] * 2)
    engine.kept_sets_refused = lambda: "it reports no sets"  # type: ignore[method-assign]
    run(engine, test, format="hermes")


def test_top_k_of_minus_one_is_off() -> None:
    engine = scripted("ok<|im_end|>")

    async def test(site: Site) -> None:
        assert (await site.chat(top_k=-1)).status_code == 200
        assert (await site.chat(top_k=-2)).status_code == 400

    run(engine, test, format="hermes")
    assert [sampling.top_k for sampling in engine.samplings] == [0]


def test_tools_of_the_vendor_are_left_out_and_said_so() -> None:
    engine = scripted("ok<|im_end|>", "ok<|im_end|>", "ok<|im_end|>")

    async def test(site: Site) -> None:
        tool = {"type": "function", **FUNCTION}
        web = {"type": "web_search", "external_web_access": True}
        for tools in ([tool], [web, tool]):
            answer = await site.post("/v1/responses", {"input": "fix it", "tools": tools, "store": True})
            assert answer.status_code == 200
        served = {"type": "web_search_20250305", "name": "web_search"}
        custom = {"name": "read_file", "description": "reads", "input_schema": SCHEMA}
        body = {"messages": USER, "max_tokens": 50, "tools": [served, custom], "thinking": {"type": "enabled"}}
        assert (await site.post("/v1/messages", body)).status_code == 200
        metrics = (await site.http.get("/metrics")).text
        assert "woodshed_gateway_ignored_total 5" in metrics
        ignored = (await site.admin.finish("t")).ignored
        assert ignored == {"tools.web_search": 1, "store": 2, "tools.web_search_20250305": 1, "thinking": 1}

    run(engine, test, format="hermes")
    prompts = [prompt for _, prompt, _ in engine.calls]
    assert prompts[0] == prompts[1] == prompts[2]


@pytest.mark.parametrize("streamed", [False, True])
def test_functions_of_a_namespace_are_called_by_their_names(streamed: bool) -> None:
    async def test(site: Site) -> None:
        client = openai.AsyncOpenAI(api_key=site.key, base_url="http://gateway/v1", http_client=site.http)
        inner = {"type": "function", **FUNCTION, "name": "spawn", "strict": False}
        tools: Any = [{"type": "namespace", "name": "team", "description": "Agents.", "tools": [inner]}]
        conversation: list[Any] = [{"role": "user", "content": "fix it"}]
        asked: dict[str, Any] = {"model": "m", "input": conversation, "tools": tools}
        if streamed:
            async for event in await client.responses.create(**asked, stream=True):
                if event.type == "response.completed":
                    response = event.response
        else:
            response = await client.responses.create(**asked)
        (call,) = [item for item in response.output if item.type == "function_call"]
        sent_back = call.to_dict()
        assert (sent_back["namespace"], sent_back["name"]) == ("team", "spawn")
        conversation += [sent_back, {"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
        await client.responses.create(model="m", input=conversation, tools=tools)
        assert len((await site.admin.finish("t")).segments) == 1

    run(scripted(SPAWN, "ok<|im_end|>"), test, format="hermes")


@pytest.mark.parametrize("streamed", [False, True])
def test_functions_of_old_are_tools(streamed: bool) -> None:
    engine = scripted(CALL, "ok<|im_end|>", CALL)

    async def test(site: Site) -> None:
        client = openai.AsyncOpenAI(api_key=site.key, base_url="http://gateway/v1", http_client=site.http)
        messages: list[Any] = [{"role": "user", "content": "fix it"}]
        asked: dict[str, Any] = {"model": "m", "functions": [FUNCTION], "function_call": "auto"}
        if streamed:
            parts = [
                part async for part in await client.chat.completions.create(**asked, messages=messages, stream=True)
            ]
            deltas = [part.choices[0].delta for part in parts]
            (call,) = [delta.function_call for delta in deltas if delta.function_call]
            finish = parts[-1].choices[0].finish_reason
            echoed = {"role": "assistant", "content": None, "function_call": call.to_dict()}
        else:
            choice = (await client.chat.completions.create(**asked, messages=messages)).choices[0]
            call, finish = choice.message.function_call, choice.finish_reason
            assert choice.message.tool_calls is None
            echoed = choice.message.to_dict()
        assert (call.name, call.arguments, finish) == ("read_file", '{"path": "a"}', "function_call")
        messages += [echoed, {"role": "function", "name": "read_file", "content": "x = 1"}]
        await client.chat.completions.create(**asked, messages=messages)
        assert len((await site.admin.finish("t")).segments) == 1
        other = await site.admin.open("tools")
        await site.chat(key=other, tools=[{"type": "function", "function": FUNCTION}])

    run(engine, test, format="hermes")
    assert engine.calls[0][1] == engine.calls[2][1]  # the policy sees tools


def test_functions_beside_tools_are_refused() -> None:
    async def test(site: Site) -> None:
        answer = await site.chat(functions=[FUNCTION], tools=[{"type": "function", "function": FUNCTION}])
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "functions"

    run(scripted(), test, format="hermes")


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 0.5}, {"max_tokens": 7}, {"top_p": 0.5}, {"seed": 1}, {"logit_bias": {"5": 1}}, {"stop": "z"}],
)
def test_a_retry_with_other_parameters_is_another_request(changed: dict[str, Any]) -> None:
    engine = scripted("first<|im_end|>", "second<|im_end|>")

    async def test(site: Site) -> None:
        trajectory = site.app.state.gateway.trajectories.by_id["t"]
        said = [(await site.chat(seed=0)).json()["choices"][0]["message"]["content"]]
        for parameters in ({"seed": 0}, {"seed": 0, **changed}):
            trajectory.recorder.segments[0].undelivered = True  # as after a crash
            said.append((await site.chat(**parameters)).json()["choices"][0]["message"]["content"])
        assert said == ["first", "first", "second"]

    run(engine, test, format="hermes")
    assert len(engine.samplings) == 2 and isinstance(engine.samplings[0], Sampling)
